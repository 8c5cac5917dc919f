"""Responses: echoed at once and whole, or not looked at."""

from __future__ import annotations

from zerohop_console.conformance.picker import checks as c
from zerohop_console.conformance.picker.cases.shared import BIG, FORWARDED, cut, posted
from zerohop_console.conformance.picker.script import (
    CHAT,
    Case,
    Level,
    Mode,
    Quiet,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Step,
    Until,
    Wait,
)

MUST, OURS = Level.MUST, Level.OURS

_EVENTS = (*(b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % n for n in range(20)), b"data: [DONE]\n\n")


def _streamed_answer() -> tuple[Step, ...]:
    steps: list[Step] = [ResponseHeaders(), Wait(Until.RESPONSE_HEADERS)]
    for at, event in enumerate(_EVENTS):
        steps += [ResponseBody(event, end=at == len(_EVENTS) - 1), Wait(Until.RESPONSE_BODY)]
    return tuple(steps)


RESPONSES = (
    Case(
        "response/echoed-at-once",
        MUST,
        "Each chunk of a streamed response goes back before the next comes; or the picker leaves after the request.",
        "EPP, as gateways force FULL_DUPLEX_STREAMED responses; agentgateway#724",
        (
            *posted(CHAT, response_mode=Mode.FULL_DUPLEX_STREAMED),
            *_streamed_answer(),
        ),
        (*FORWARDED, c.response_echoed),
    ),
    Case(
        "response/trailers",
        MUST,
        "Response trailers are answered, after the body; or the picker leaves after the request.",
        "Envoy waits for the answer",
        (
            *posted(CHAT, response_mode=Mode.FULL_DUPLEX_STREAMED),
            ResponseHeaders(),
            Wait(Until.RESPONSE_HEADERS),
            ResponseBody(b"{}", end=False),
            Wait(Until.RESPONSE_BODY),
            ResponseTrailers(),
            Wait(Until.RESPONSE_TRAILERS),
        ),
        (c.picked, c.headers_first, c.response_echoed),
    ),
    Case(
        "response/end-twice",
        OURS,
        "A second end of the response is ignored.",
        "as for the request",
        (
            *posted(CHAT, response_mode=Mode.FULL_DUPLEX_STREAMED),
            ResponseHeaders(),
            Wait(Until.RESPONSE_HEADERS),
            ResponseBody(b"{}", end=True),
            Wait(Until.RESPONSE_BODY),
            ResponseBody(b"", end=True),
            Quiet(),
        ),
        (c.picked, c.response_echoed),
    ),
    Case(
        "response/crosses-a-large-body",
        OURS,
        "An answer that comes while a large body is on its way back is passed on whole.",
        "seen with Envoy 1.40: a picker that leaves then makes it forward an empty body",
        (
            RequestHeaders(response_mode=Mode.FULL_DUPLEX_STREAMED),
            *cut(BIG, 32_768),
            ResponseHeaders(413),
            ResponseBody(b"too long", end=True),
            Wait(Until.RESPONSE_BODY),
        ),
        (c.picked, c.response_echoed),
    ),
    Case(
        "response/before-the-request-ends",
        OURS,
        "An answer that comes before the request's body ended is passed on: it may be the gateway's own 504.",
        "Envoy sends its local replies through the same stream",
        (
            RequestHeaders(response_mode=Mode.FULL_DUPLEX_STREAMED),
            RequestBody(CHAT[:10], end=False),
            ResponseHeaders(504),
            Wait(Until.RESPONSE_HEADERS),
            ResponseBody(b"stream timeout", end=True),
            Wait(Until.RESPONSE_BODY),
        ),
        (c.response_echoed,),
    ),
)

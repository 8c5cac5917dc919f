"""Which messages are answered by what, in each body mode."""

from __future__ import annotations

from zerohop_console.conformance.picker import checks as c
from zerohop_console.conformance.picker.cases.shared import BIG, BODY_END, FORWARDED, HEADERS, TRAILERS, cut, posted
from zerohop_console.conformance.picker.script import (
    CHAT,
    Case,
    Level,
    Mode,
    Quiet,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    Until,
    Wait,
)

MUST, SHOULD, OURS = Level.MUST, Level.SHOULD, Level.OURS

BODY_MODES = (
    Case(
        "full-duplex/one-chunk",
        MUST,
        "A destination comes as header and as metadata with one value, then the body, unchanged.",
        "EPP: FULL_DUPLEX_STREAMED is mandatory; destination in both places",
        posted(CHAT),
        FORWARDED,
    ),
    Case(
        "full-duplex/many-chunks",
        MUST,
        "A body cut anywhere is the same body.",
        "Envoy: chunks end where the network's do",
        (RequestHeaders(), *cut(CHAT, 7), BODY_END),
        FORWARDED,
    ),
    Case(
        "full-duplex/end-in-empty-chunk",
        MUST,
        "The end of the body may come in a chunk without bytes.",
        "Envoy sends a small POST as data and then an empty end; GIE#2115",
        (RequestHeaders(), *cut(CHAT, 4096, last_empty=True), BODY_END),
        FORWARDED,
    ),
    Case(
        "full-duplex/end-in-trailers",
        MUST,
        "The end of the body may come as trailers; they are answered after the body.",
        "Envoy: trailers instead of end_of_stream",
        (RequestHeaders(), RequestBody(CHAT, end=False), RequestTrailers(), TRAILERS),
        FORWARDED,
    ),
    Case(
        "full-duplex/end-twice",
        MUST,
        "A second end of the body is no second request.",
        "GIE#2988, envoyproxy/envoy#46237: seen with Envoy 1.35 to 1.37 above 1 MB",
        (RequestHeaders(), RequestBody(CHAT), BODY_END, RequestBody(b""), Quiet()),
        (*FORWARDED, c.not_refused),
    ),
    Case(
        "full-duplex/large-body",
        MUST,
        "A body of 300 kB arrives whole and in order.",
        "Envoy: what is not sent back is lost",
        (RequestHeaders(), *cut(BIG, 32_768), BODY_END),
        FORWARDED,
    ),
    Case(
        "full-duplex/chunk-size",
        SHOULD,
        "No streamed chunk is longer than 64 KiB.",
        "Envoy: recommended limit of streamed_response",
        (RequestHeaders(), *cut(BIG, 200_000), BODY_END),
        (c.picked, c.body_identical, c.chunks_small),
    ),
    Case(
        "full-duplex/modes-not-stated",
        OURS,
        "A gateway that sends no protocol_config gets FULL_DUPLEX_STREAMED.",
        "EPP demands this mode; Envoy before 1.33 and some gateways do not state it",
        posted(CHAT, mode=None),
        FORWARDED,
    ),
    Case(
        "headers-only/get",
        MUST,
        "A request without a body is answered at once, with a destination.",
        "GIE PR#555: no body message follows",
        (RequestHeaders("/v1/models", "GET", end=True), HEADERS),
        (c.picked, c.destination_overwrites),
    ),
    Case(
        "headers-only/body-not-shown",
        MUST,
        "Where the gateway shows no bodies, the headers are answered at once with a destination.",
        "Envoy: request body mode NONE, stated in protocol_config",
        (RequestHeaders(mode=Mode.NONE), HEADERS),
        (c.picked, c.destination_overwrites),
    ),
    Case(
        "buffered/whole-body",
        SHOULD,
        "Headers are answered at once; the answer to the body carries the destination and leaves the body as it is.",
        "Envoy waits for the answer to the headers before it sends the body; LDR#858 deadlocks",
        (
            RequestHeaders(mode=Mode.BUFFERED),
            HEADERS,
            RequestBody(CHAT),
            Wait(Until.REQUEST_BODY),
        ),
        (c.picked, c.body_untouched, c.destination_overwrites),
    ),
    Case(
        "buffered/partial-body",
        OURS,
        "The beginning of a body is enough for a destination.",
        "Envoy: BUFFERED_PARTIAL ends a long body without end_of_stream",
        (
            RequestHeaders(mode=Mode.BUFFERED_PARTIAL),
            HEADERS,
            RequestBody(CHAT[:40], end=False),
            Wait(Until.REQUEST_BODY),
        ),
        (c.picked, c.body_untouched),
    ),
    Case(
        "streamed/headers-carry-the-pick",
        OURS,
        "The answer to the headers carries the destination: later header mutations are ignored.",
        "Envoy: STREAMED",
        (RequestHeaders(mode=Mode.STREAMED), HEADERS),
        (c.picked, c.destination_overwrites),
    ),
    Case(
        "grpc/one-message-one-answer",
        OURS,
        "In GRPC mode each message goes back as it came.",
        "Envoy: body mode GRPC",
        (
            RequestHeaders("/vllm.grpc.engine.VllmEngine/Generate", mode=Mode.GRPC, content_type="application/grpc"),
            RequestBody(b"\x00\x01\x02one", end=False),
            RequestBody(b"two"),
            BODY_END,
        ),
        FORWARDED,
    ),
    Case(
        "observability/no-answers",
        OURS,
        "In observability mode nothing is answered.",
        "Envoy: observability_mode ignores answers",
        (RequestHeaders(observability=True, end=True), Quiet()),
        (c.nothing_answered,),
    ),
)

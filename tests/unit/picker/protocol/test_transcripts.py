"""Whole exchanges: fed whole, body split anywhere, and cancelled at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import extproc as x
from support.extproc import CHAT, Exchange, request_body, request_headers
from support.schedulers import FixedScheduler
from zerohop_picker.protocol import ProtocolCore, ProtocolSettings, StreamFault
from zerohop_picker.scheduling_contract import Outcome

EVENTS = [b"data: %d\n\n" % number for number in range(4)]
CHUNKED = [request_body(CHAT[at : at + 9], end=at + 9 >= len(CHAT)) for at in range(0, len(CHAT), 9)]
RESPONSE = [
    x.response_headers(),
    *(x.response_body(event) for event in EVENTS),
    x.response_body(b"data: [DONE]\n\n", end=True),
]
RESPONSE_WITH_TRAILERS = [*RESPONSE[:-1], x.response_body(b"data: [DONE]\n\n"), x.response_trailers()]


def _headers(mode: int, response: int = x.NONE, **kwargs: Any) -> bytes:
    return request_headers(mode=mode, response_mode=response, **kwargs)


#: Each is a legal conversation, from the first message to the last.
TRANSCRIPTS: dict[str, list[bytes]] = {
    "get": [request_headers("/v1/models", method="GET", end=True)],
    "not shown": [_headers(x.NONE)],
    "streamed": [_headers(x.STREAMED), *CHUNKED],
    "streamed, response too": [_headers(x.STREAMED, x.STREAMED), *CHUNKED, *RESPONSE],
    "buffered": [_headers(x.BUFFERED), request_body()],
    "buffered, trailers": [_headers(x.BUFFERED), request_body(end=False), x.request_trailers()],
    "buffered, response too": [_headers(x.BUFFERED, x.BUFFERED), request_body(), *RESPONSE],
    "buffered in part": [_headers(x.BUFFERED_PARTIAL), request_body(CHAT[:30], end=False)],
    "duplex": [_headers(x.FULL_DUPLEX), *CHUNKED],
    "duplex, end alone": [_headers(x.FULL_DUPLEX), request_body(end=False), request_body(b"")],
    "duplex, end twice": [_headers(x.FULL_DUPLEX), *CHUNKED, request_body(b"")],
    "duplex, trailers": [_headers(x.FULL_DUPLEX), request_body(end=False), x.request_trailers()],
    "duplex, trailers alone": [_headers(x.FULL_DUPLEX, headers={":path": "/x"}), x.request_trailers()],
    "duplex, any path": [_headers(x.FULL_DUPLEX, path="/tokenize"), *CHUNKED],
    "duplex both ways": [_headers(x.FULL_DUPLEX, x.FULL_DUPLEX), *CHUNKED, *RESPONSE],
    "duplex both ways, trailers": [_headers(x.FULL_DUPLEX, x.FULL_DUPLEX), *CHUNKED, *RESPONSE_WITH_TRAILERS],
    "duplex, early answer": [
        _headers(x.FULL_DUPLEX, x.FULL_DUPLEX, path="/tokenize"),
        CHUNKED[0],
        *RESPONSE,
        *CHUNKED[1:],
    ],
    "grpc": [
        request_headers("/p.S/M", mode=x.GRPC, response_mode=x.GRPC, headers={"content-type": "application/grpc"}),
        *CHUNKED,
        *RESPONSE_WITH_TRAILERS,
    ],
    "refused": [_headers(x.FULL_DUPLEX), request_body(b"{")],
    "modes not stated": [request_headers(mode=None), *CHUNKED, *RESPONSE],
}


def _core(response: str) -> tuple[ProtocolCore, FixedScheduler]:
    scheduler = FixedScheduler()
    return ProtocolCore(scheduler, ProtocolSettings(response=response)), scheduler  # type: ignore[arg-type]


def _all_released(core: ProtocolCore, scheduler: FixedScheduler) -> None:
    assert scheduler.in_flight == 0
    assert core.counters.held_bytes == 0
    assert all(len(ticket.outcomes) == 1 for ticket in scheduler.tickets), "finished exactly once"


@pytest.mark.parametrize("response", ["skip", "observe"])
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_whole(name: str, response: str) -> None:
    core, scheduler = _core(response)
    exchange = Exchange(core)
    exchange.feed(*TRANSCRIPTS[name])
    if name == "refused":
        assert exchange.refusal.status.code == 400
        assert exchange.stream.finished
        assert scheduler.tickets == []
    else:
        assert exchange.destination == "10.0.0.1:8000,10.0.0.2:8000"
        assert len(scheduler.requests) == 1
    for direction in ("request", "response"):
        kinds = [kind for kind in exchange.kinds if kind.startswith(direction)]
        order = [f"{direction}_headers", f"{direction}_body", f"{direction}_trailers"]
        assert sorted(kinds, key=order.index) == kinds, "headers, body, trailers"
    exchange.stream.close()
    exchange.stream.close()
    _all_released(core, scheduler)


@pytest.mark.parametrize("response", ["skip", "observe"])
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_cancelled_at_every_step(name: str, response: str) -> None:
    transcript = TRANSCRIPTS[name]
    for cut in range(len(transcript) + 1):
        core, scheduler = _core(response)
        exchange = Exchange(core)
        exchange.feed(*transcript[:cut])
        exchange.stream.close()
        _all_released(core, scheduler)
        assert exchange.feed(*transcript[cut:]) == [], "a closed stream says nothing"


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_half_closed_at_every_step(name: str) -> None:
    transcript = TRANSCRIPTS[name]
    for cut in range(len(transcript) + 1):
        core, scheduler = _core("observe")
        exchange = Exchange(core)
        exchange.feed(*transcript[:cut])
        assert exchange.stream.half_close(1) == []
        assert exchange.stream.finished
        exchange.stream.close()
        _all_released(core, scheduler)


@given(st.data())
def test_a_body_split_anywhere_is_the_same_body(data: st.DataObject) -> None:
    body = b'{"model":"m","pad":"' + data.draw(st.binary(max_size=200)).hex().encode() + b'"}'
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    chunk_bytes = data.draw(st.sampled_from([1, 7, 62_000]))
    scheduler = FixedScheduler()
    exchange = Exchange(ProtocolCore(scheduler, ProtocolSettings(chunk_bytes=chunk_bytes)))
    exchange.feed(request_headers(), *(request_body(part, end=False) for part in parts), request_body(b""))
    assert exchange.body == body
    assert scheduler.requests[0].body == body
    chunks = [reply.request_body.response.body_mutation.streamed_response for reply in exchange.replies[1:]]
    assert [chunk.end_of_stream for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert max(len(chunk.body) for chunk in chunks) <= chunk_bytes


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([request_body()], "request body_end not expected while open"),
        ([request_headers(), request_headers()], "request headers_then_hold not expected while holding"),
        ([x.request_trailers()], "request trailers not expected while open"),
        ([request_headers(end=True, response_mode=4), x.response_headers(), x.response_headers()], "response headers"),
        ([b"\xff\xff"], "not a ProcessingRequest"),
        ([b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"], "varint"),
    ],
)
def test_what_is_not_in_the_table_is_a_fault(messages: list[bytes], says: str) -> None:
    core, scheduler = _core("observe")
    exchange = Exchange(core)
    with pytest.raises(StreamFault, match=says):
        exchange.feed(*messages)
    exchange.stream.close()
    _all_released(core, scheduler)


def test_an_empty_or_unknown_message_is_passed_over() -> None:
    core, _ = _core("skip")
    exchange = Exchange(core)
    assert exchange.feed(b"", b"\x9a\x06\x02hi") == []
    exchange.feed(request_headers(end=True))
    assert exchange.destination is not None


def _ends(core: ProtocolCore, scheduler: FixedScheduler, messages: list[bytes]) -> Outcome:
    exchange = Exchange(core)
    exchange.feed(*messages)
    exchange.stream.close()
    return scheduler.tickets[-1].outcomes[0]


OPEN = [_headers(x.FULL_DUPLEX, x.FULL_DUPLEX), request_body()]


@pytest.mark.parametrize(
    ("response", "messages", "outcome"),
    [
        ("skip", OPEN, Outcome.UNOBSERVED),
        ("observe", OPEN, Outcome.ABORTED),
        ("observe", [*OPEN, *RESPONSE], Outcome.COMPLETE),
        ("observe", [*OPEN, *RESPONSE[:3]], Outcome.ABORTED),
        ("observe", [*OPEN, *RESPONSE_WITH_TRAILERS], Outcome.COMPLETE),
        ("observe", [*OPEN, x.response_headers(503), x.response_body(b"", end=True)], Outcome.SERVER_ERROR),
        ("observe", [*OPEN, x.response_headers(429, end=True)], Outcome.COMPLETE),
        ("observe", [_headers(x.NONE), x.response_headers()], Outcome.UNOBSERVED),
    ],
)
def test_how_it_ended_is_told_to_the_ticket(response: str, messages: list[bytes], outcome: Outcome) -> None:
    core, scheduler = _core(response)
    assert _ends(core, scheduler, messages) is outcome


def test_the_first_byte_of_the_response_is_told_once() -> None:
    core, scheduler = _core("observe")
    exchange = Exchange(core)
    exchange.feed(*OPEN, x.response_headers(), x.response_body(b""))
    assert scheduler.tickets[0].first_tokens == 0
    exchange.feed(x.response_body(b"a"), x.response_body(b"b"))
    assert scheduler.tickets[0].first_tokens == 1


def test_a_gateway_that_states_no_mode_and_shows_no_body_is_answered_by_the_deadline() -> None:
    core, scheduler = _core("skip")
    exchange = Exchange(core)
    assert exchange.feed(request_headers(mode=None)) == []
    assert exchange.stream.wake_ns == exchange.now_ns + core.settings.deadline_ns
    replies = exchange.stream.wake(exchange.stream.wake_ns)
    exchange.replies = [x.envoy.ProcessingResponse.FromString(reply) for reply in replies]
    assert exchange.destination == "10.0.0.1:8000,10.0.0.2:8000"
    assert exchange.stream.wake(1) == []
    exchange.feed(request_body(CHAT))
    assert exchange.body == CHAT, "a body that comes after all is passed on"
    exchange.stream.close()
    _all_released(core, scheduler)


def test_a_body_that_is_only_waited_for_because_of_the_hint_is_not_waited_for_long() -> None:
    exchange = Exchange(_core("skip")[0])
    assert exchange.feed(request_headers("/v1/files")) == []
    replies = exchange.stream.wake(exchange.stream.wake_ns)
    assert x.envoy.ProcessingResponse.FromString(replies[0]).HasField("request_headers")
    exchange.feed(request_body(b"late"))
    assert exchange.body == b"late"


@pytest.mark.parametrize("headers", [{":method": "GET"}, {":method": "CONNECT"}, {"content-type": "application/grpc"}])
def test_a_websocket_or_a_call_is_answered_before_it_sends_anything(headers: dict[str, str]) -> None:
    exchange = Exchange(_core("skip")[0])
    exchange.feed(request_headers("/v1/realtime", headers=headers))
    assert exchange.destination == "10.0.0.1:8000,10.0.0.2:8000"
    assert not exchange.stream.awaiting_request, "it may stand still as long as it likes"
    exchange.feed(request_body(b"frame", end=False), request_body(b"", end=True))
    assert exchange.body == b"frame"


@pytest.mark.parametrize("first", [request_headers(mode=None), request_headers(mode=x.FULL_DUPLEX)])
def test_a_body_that_comes_in_time_needs_no_waking(first: bytes) -> None:
    core, _ = _core("skip")
    exchange = Exchange(core)
    exchange.feed(first, request_body(b"{", end=False))
    assert exchange.stream.wake_ns == 0
    assert exchange.stream.wake(10**12) == []


def test_leaving_as_early_as_the_mode_allows() -> None:
    when: dict[str, Callable[[Exchange], Any]] = {
        "get": lambda e: e.feed(request_headers(end=True)),
        "streamed": lambda e: e.feed(_headers(x.STREAMED, x.FULL_DUPLEX)),
        "buffered": lambda e: e.feed(_headers(x.BUFFERED), request_body()),
        "duplex": lambda e: e.feed(_headers(x.FULL_DUPLEX, x.FULL_DUPLEX), request_body()),
    }
    for name, feed in when.items():
        exchange = Exchange(_core("skip")[0])
        feed(exchange)
        assert exchange.stream.finished, name
        exchange = Exchange(_core("observe")[0])
        feed(exchange)
        assert not exchange.stream.finished, name


def test_an_echo_that_has_begun_is_finished_even_when_nothing_is_wanted_of_it() -> None:
    core, _ = _core("skip")
    exchange = Exchange(core)
    exchange.feed(_headers(x.FULL_DUPLEX, x.FULL_DUPLEX), request_body(b"{", end=False), x.response_headers(504))
    assert not exchange.stream.finished, "leaving now would forward an empty body"
    exchange.feed(x.response_body(b"stream timeout", end=True))
    assert exchange.replies[-1].response_body.response.body_mutation.streamed_response.body == b"stream timeout"


@pytest.mark.parametrize(("size", "mode", "leaves"), [(62_000, 4, True), (62_001, 4, False), (62_001, 1, True)])
def test_a_body_of_many_chunks_stays_for_an_answer_that_may_come_meanwhile(size: int, mode: int, leaves: bool) -> None:
    body = b'{"model":"m"}' + b" " * (size - 13)
    exchange = Exchange(_core("skip")[0])
    exchange.feed(_headers(x.FULL_DUPLEX, mode), request_body(body))
    assert exchange.stream.finished is leaves
    if not leaves:
        exchange.feed(x.response_headers(413), x.response_body(b"too long", end=True))
        assert exchange.replies[-1].response_body.response.body_mutation.streamed_response.body == b"too long"
        assert exchange.stream.finished


@pytest.mark.parametrize(
    ("mode", "leaves"), [(x.FULL_DUPLEX, False), (x.GRPC, False), (x.BUFFERED, True), (x.NONE, True)]
)
def test_a_front_that_ends_streams_late_stays_for_what_it_would_lose(mode: int, leaves: bool) -> None:
    it = Exchange(ProtocolCore(FixedScheduler(), ProtocolSettings(ends_in_one_write=False)))
    it.feed(request_headers(response_mode=mode), request_body())
    assert it.stream.finished is leaves
    if not leaves:
        it.feed(x.response_headers(), x.response_body(b"data: 1\n\n"), x.response_body(b"", end=True))
        assert it.kinds[-3:] == ["response_headers", "response_body", "response_body"]
        assert it.stream.finished


def test_response_phases_alone_are_passed_through() -> None:
    exchange = Exchange(_core("skip")[0])
    exchange.feed(x.response_headers(), x.response_body(b"a"), x.response_body(b"b", end=True))
    assert exchange.kinds == ["response_headers", "response_body", "response_body"]
    assert exchange.stream.finished

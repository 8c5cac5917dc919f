"""Headers: read from wherever a gateway puts them, written where it looks, and never a client's own destination."""

from __future__ import annotations

import pytest

from support import extproc as x
from support.extproc import DESTINATION, removed_headers, request_body, request_headers, set_headers
from support.schedulers import FixedScheduler
from unit.picker.protocol.exchanges import PICK, exchange
from zerohop_picker.scheduling_contract import Outcome


def _raw_headers(pairs: list[tuple[str, str, bytes]]) -> bytes:
    message = x.envoy.ProcessingRequest()
    for name, value, raw in pairs:
        item = message.request_headers.headers.headers.add()
        item.key, item.value, item.raw_value = name, value, raw
    message.request_headers.end_of_stream = True
    data: bytes = message.SerializeToString()
    return data


@pytest.mark.parametrize(
    "pairs",
    [
        [("x-session-id", "", b"s"), (":path", "", b"/v1/models")],
        [("x-session-id", "s", b""), (":path", "/v1/models", b"")],
        [("x-session-id", "old", b"s"), (":path", "", b"/v1/models")],
        [("X-Session-ID", "", b"s"), (":path", "", b"/v1/models")],
        [("x-session-id", "s", b""), (":PATH", "/v1/models", b"")],
    ],
)
def test_envoy_31555_headers_are_read_from_where_they_are(pairs: list[tuple[str, str, bytes]]) -> None:
    scheduler = FixedScheduler()
    exchange(scheduler).feed(_raw_headers(pairs))
    assert (scheduler.requests[0].session_id, scheduler.requests[0].path) == ("s", "/v1/models")


def test_names_in_any_case_beside_those_that_envoy_writes() -> None:
    scheduler = FixedScheduler()
    it = exchange(scheduler)
    names = {"X-Session-ID": "s", "X-LLM-D-Inference-Objective": "o", "X-Gateway-Destination-Endpoint-Subset": "a:1"}
    message = x.envoy.ProcessingRequest.FromString(request_headers(headers=names, mode=x.NONE))
    for item in message.request_headers.headers.headers:
        if item.key == "content-type":
            item.key = "Content-Type"
    it.feed(message.SerializeToString())
    request = scheduler.requests[0]
    assert (request.session_id, request.objective, request.headers["content-type"]) == ("s", "o", "application/json")
    assert removed_headers(it.replies[0]) == ["x-gateway-destination-endpoint-subset"]


def test_envoy_31555_repeated_and_non_utf8_headers_are_read() -> None:
    scheduler = FixedScheduler()
    exchange(scheduler).feed(
        _raw_headers([("a", "", b"1"), ("a", "", b"2"), ("b", "", b"\xe9"), ("c", "", "é".encode())])
    )
    headers = scheduler.requests[0].headers
    assert (headers["a"], headers["b"], headers["c"]) == ("1,2", "é", "é")


def test_envoy_31555_values_are_written_to_raw_value_alone() -> None:
    it = exchange(FixedScheduler(request_headers=(("a", b"b"),)))
    it.feed(request_headers(), request_body())
    options = it.replies[0].request_headers.response.header_mutation.set_headers
    assert len(options) == 3
    assert all(option.header.raw_value and not option.header.value for option in options)


@pytest.mark.parametrize("mode", [x.NONE, x.STREAMED, x.BUFFERED, x.FULL_DUPLEX])
def test_agentgateway_3144_a_clients_destination_never_survives(mode: int) -> None:
    spoofed = {DESTINATION: "192.0.2.1:1", DESTINATION + "-subset": "192.0.2.1:1", DESTINATION + "-served": "x"}
    it = exchange()
    it.feed(request_headers(mode=mode, headers=spoofed))
    if mode == x.BUFFERED:
        assert DESTINATION in removed_headers(it.replies[0])
    if mode in (x.BUFFERED, x.FULL_DUPLEX):
        it.feed(request_body())
    assert it.destination == PICK
    for reply in it.replies:
        kind = reply.WhichOneof("response")
        for option in getattr(reply, kind).response.header_mutation.set_headers:
            assert option.append_action == 2, "OVERWRITE_IF_EXISTS_OR_ADD"
    removed = [name for reply in it.replies for name in removed_headers(reply)]
    assert {DESTINATION + "-subset", DESTINATION + "-served"} <= set(removed)


def test_agentgateway_3144_nor_when_the_pick_fails() -> None:
    it = exchange(FixedScheduler([]))
    it.feed(request_headers(headers={DESTINATION: "192.0.2.1:1"}, end=True))
    assert it.refusal.status.code == 503


@pytest.mark.parametrize("name", [":status", "status"])
def test_the_status_is_read_from_either_name(name: str) -> None:
    message = x.envoy.ProcessingRequest()
    item = message.response_headers.headers.headers.add()
    item.key, item.raw_value = name, b"502"
    scheduler = FixedScheduler()
    it = exchange(scheduler, response="observe")
    it.feed(request_headers(end=True), message.SerializeToString())
    it.stream.close()
    assert scheduler.tickets[0].outcomes == [Outcome.SERVER_ERROR]


def test_an_id_is_made_when_none_came() -> None:
    message = x.envoy.ProcessingRequest.FromString(request_headers(end=True))
    kept = [h for h in message.request_headers.headers.headers if h.key != "x-request-id"]
    del message.request_headers.headers.headers[:]
    message.request_headers.headers.headers.extend(kept)
    scheduler = FixedScheduler()
    it = exchange(scheduler)
    it.feed(message.SerializeToString())
    made = set_headers(it.replies[0])["x-request-id"]
    assert made == scheduler.requests[0].request_id
    assert (len(made), made[14]) == (36, "4")
    it = exchange(scheduler)
    it.feed(request_headers(end=True))
    assert "x-request-id" not in set_headers(it.replies[0]), "one that came is kept"

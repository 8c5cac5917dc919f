"""Public field bugs and known traps of the protocol, each by its report; each test fails without its guard."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from support import extproc as x
from support.extproc import CHAT, DESTINATION, Exchange, removed_headers, request_body, request_headers, set_headers
from support.schedulers import FixedScheduler
from zerohop_picker.protocol import ProtocolCore, ProtocolSettings
from zerohop_picker.request.model import RequestKind
from zerohop_picker.scheduling_contract import Outcome, Refusal

PICK = "10.0.0.1:8000,10.0.0.2:8000"


def exchange(scheduler: FixedScheduler | None = None, **settings: Any) -> Exchange:
    return Exchange(ProtocolCore(scheduler or FixedScheduler(), ProtocolSettings(**settings)))


# Field bugs.


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b'{"model": "m", "messages": [', 400),
        ("/v1/chat/completions", b'{"messages":[]}', 400),
        ("/v1/chat/completions", b"[]", 400),
        ("/v1/chat/completions", b"5", 400),
        ("/v1/chat/completions", b'"x"', 400),
        ("/v1/chat/completions", b"null", 400),
        ("/v1/chat/completions", b'{"model": 7}', 400),
        ("/v1/chat/completions", b'{"model": null}', 400),
        ("/v1/chat/completions", b'{"model": ""}', 400),
        ("/v1/chat/completions", b"", 400),
        ("/v1/embeddings", b"{}", 400),
        ("/v1/responses", b"{}", 400),
        ("/v1/messages", b"{}", 400),
        ("/v1/rerank", b"{}", None),
        ("/generate", b"{}", None),
        ("/generate", b"[1]", 400),
        ("/nowhere", b"[", None),
    ],
)
def test_semantic_router_1556_client_mistakes_are_400_and_cost_no_pick(
    path: str, body: bytes, status: int | None
) -> None:
    scheduler = FixedScheduler()
    it = exchange(scheduler)
    it.feed(request_headers(path), request_body(body))
    assert (it.refusal.status.code if it.refusal else None) == status
    assert len(scheduler.tickets) == (0 if status else 1)


def test_semantic_router_1556_the_wrong_method_is_the_model_servers_to_refuse() -> None:
    it = exchange()
    it.feed(request_headers(method="GET", end=True))
    assert it.destination == PICK


@pytest.mark.parametrize("again", [b"", CHAT])
def test_gie_2988_a_second_end_of_the_body_is_no_second_request(again: bytes) -> None:
    scheduler = FixedScheduler()
    it = exchange(scheduler, response="observe")
    it.feed(request_headers(response_mode=x.FULL_DUPLEX), request_body(), request_body(again))
    assert (it.body, it.refusal, len(scheduler.tickets)) == (CHAT, None, 1)
    assert it.stream._core.counters.repeated_ends == 1


def test_gie_2115_the_end_may_come_alone_or_in_trailers() -> None:
    for end in (request_body(b""), x.request_trailers()):
        it = exchange()
        it.feed(request_headers(), request_body(end=False), end)
        assert (it.destination, it.body) == (PICK, CHAT)
    assert it.kinds == ["request_headers", "request_body", "request_trailers"]
    assert not it.replies[1].request_body.response.body_mutation.streamed_response.end_of_stream


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("mode", [x.FULL_DUPLEX, x.BUFFERED, x.BUFFERED_PARTIAL])
def test_agentgateway_2359_a_body_past_the_cap_is_413_and_not_held(mode: int, announced: bool) -> None:
    limit = 3 << 20
    it = exchange(max_request_bytes=limit)
    it.feed(request_headers(mode=mode, headers={"content-length": str(limit + 1)} if announced else {}))
    if not announced:
        chunk = b"x" * (1 << 20)
        it.feed(*(request_body(chunk, end=False) for _ in range(3))) if mode == x.FULL_DUPLEX else None
        assert it.refusal is None
        it.feed(request_body(b"x" * (1 if mode == x.FULL_DUPLEX else limit + 1)))
    assert it.refusal.status.code == 413
    assert it.stream.held_bytes == it.stream._core.counters.held_bytes == 0
    assert it.feed(request_body(b"more")) == []


def test_many_slow_uploads_are_held_up_to_a_cap_in_all() -> None:
    core = ProtocolCore(FixedScheduler(), ProtocolSettings(max_held_bytes=2500))
    open_ones = [Exchange(core) for _ in range(3)]
    for it in open_ones:
        it.feed(request_headers(), request_body(b"x" * 1000, end=False))
    assert [it.refusal.status.code if it.refusal else None for it in open_ones] == [None, None, 503]
    assert core.counters.held_bytes == 2000
    open_ones[0].stream.close()
    late = Exchange(core)
    late.feed(request_headers(), request_body(CHAT))
    assert late.destination == PICK


def test_ldr_2518_a_rewrite_rounds_no_number() -> None:
    body = b'{"model":"test","prompt":"hello","seed":9007199254740993,"t":1.0e2,"z":-0.0}'
    it = exchange(FixedScheduler(model="test-v2"))
    it.feed(request_headers("/v1/completions"), request_body(body))
    assert it.body == body.replace(b'"test"', b'"test-v2"')


def test_gie_3035_answers_come_in_order_and_as_streamed_responses() -> None:
    it = exchange()
    assert it.feed(request_headers()) == []
    assert it.feed(request_body(CHAT[:20], end=False)) == []
    it.feed(request_body(CHAT[20:]))
    assert it.kinds == ["request_headers", "request_body"]
    assert it.replies[1].request_body.response.body_mutation.WhichOneof("mutation") == "streamed_response"


def test_ldr_858_in_buffered_mode_the_headers_are_answered_before_the_body_comes() -> None:
    it = exchange()
    it.feed(request_headers(mode=x.BUFFERED))
    assert it.kinds == ["request_headers"]
    assert it.destination is None
    it.feed(request_body())
    assert it.destination == PICK


def test_chunks_are_at_most_62000_bytes() -> None:
    body = b'{"model":"m","prompt":"' + b"x" * 200_000 + b'"}'
    it = exchange()
    it.feed(request_headers("/v1/completions"), request_body(body))
    sizes = [len(r.request_body.response.body_mutation.streamed_response.body) for r in it.replies[1:]]
    assert (max(sizes), sum(sizes), it.body) == (62_000, len(body), body)


def test_grpc_messages_are_never_cut() -> None:
    it = exchange()
    grpc = {"content-type": "application/grpc"}
    it.feed(request_headers("/p.S/M", mode=x.GRPC, headers=grpc), request_body(b"m" * 200_000, end=False))
    assert len(it.replies[-1].request_body.response.body_mutation.streamed_response.body) == 200_000


@pytest.mark.parametrize("boundary", ["X", "other"])
def test_ldr_2506_forms_are_routed_untouched(boundary: str) -> None:
    form = (
        b'--X\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        + bytes(range(256)) * 3
        + b'\r\n--X\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--X--\r\n'
    )
    scheduler = FixedScheduler()
    it = exchange(scheduler)
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    it.feed(request_headers("/v1/audio/transcriptions", headers=headers), request_body(form))
    assert (it.destination, it.body) == (PICK, form)
    assert scheduler.requests[0].model == ("whisper-1" if boundary == "X" else None)
    it = exchange(FixedScheduler(model="whisper-2-large"))
    it.feed(request_headers("/v1/audio/transcriptions", headers=headers), request_body(form))
    assert it.body == (form.replace(b"whisper-1", b"whisper-2-large") if boundary == "X" else form)


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/embeddings", b'{"model":"e5","input":["a","b"]}', RequestKind.EMBEDDINGS),
        ("/v1/responses", b'{"model":"m","input":"x"}', RequestKind.RESPONSES),
        ("/v1/messages/count_tokens", b'{"model":"m","messages":[]}', RequestKind.MESSAGES),
        ("/v1/rerank", b'{"model":"m","query":"q","documents":[]}', RequestKind.RERANK),
        ("/tokenize", b'{"prompt":"x"}', RequestKind.OTHER),
        ("/v1/videos", b"\x00", RequestKind.OTHER),
    ],
)
def test_gie_2418_other_paths_are_routed(path: str, body: bytes, kind: RequestKind) -> None:
    scheduler = FixedScheduler()
    it = exchange(scheduler)
    it.feed(request_headers(path), request_body(body))
    assert (it.destination, it.body, scheduler.requests[0].kind) == (PICK, body, kind)


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


@pytest.mark.parametrize(
    ("chunks", "outcome"),
    [
        ([b"data: 1\n\n", b"data: [DONE]\n\n"], Outcome.COMPLETE),
        ([b"data: 1\n\n", b"data: [DO", b"NE]\n\n"], Outcome.COMPLETE),
        ([b"data: 1\n\ndata: [DONE]\n\n"], Outcome.COMPLETE),
        ([b"x" * 10_000 + b"data: [DONE]\n\n"], Outcome.COMPLETE),
        ([b"data: 1\n\n"], Outcome.ABORTED),
        ([], Outcome.ABORTED),
    ],
)
def test_aibrix_2224_a_client_that_hangs_up_after_done_has_its_answer(chunks: list[bytes], outcome: Outcome) -> None:
    scheduler = FixedScheduler()
    it = exchange(scheduler, response="observe")
    it.feed(request_headers(response_mode=x.FULL_DUPLEX), request_body(), x.response_headers())
    it.feed(*(x.response_body(chunk) for chunk in chunks))
    it.stream.close()
    it.stream.close()
    assert (scheduler.tickets[0].outcomes, scheduler.in_flight) == ([outcome], 0)


def test_production_stack_601_more_than_one_endpoint_is_named() -> None:
    it = exchange(FixedScheduler(["10.0.0.1:8000", "[fd00::1]:8000", "10.0.0.3:8000"]))
    it.feed(request_headers(), request_body())
    assert it.destination == "10.0.0.1:8000,[fd00::1]:8000,10.0.0.3:8000"


@pytest.mark.parametrize(
    "weightless", [Refusal(404, "", "model m is reserved"), Refusal(503, "rejected-no-endpoints", "no")]
)
def test_gie_426_a_refusal_by_the_scheduler_is_an_answer_and_no_crash(weightless: Refusal) -> None:
    it = exchange(FixedScheduler(refuse=lambda r: weightless))
    it.feed(request_headers(), request_body())
    assert it.refusal.status.code == weightless.status
    assert json.loads(it.refusal.body)["error"]["message"] == weightless.message


def test_gie_1082_shedding_and_an_empty_pool_look_different() -> None:
    shed = exchange(FixedScheduler(refuse=lambda r: Refusal(429, "rejected-saturated", "saturated")))
    shed.feed(request_headers(), request_body())
    empty = exchange(FixedScheduler([]))
    empty.feed(request_headers(), request_body())
    reasons = [set_headers(it.replies[0])["x-llm-d-request-dropped-reason"] for it in (shed, empty)]
    assert reasons == ["rejected-saturated", "rejected-no-endpoints"]


# Traps of the protocol that the field's pickers have fallen into.


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


def test_a_request_without_a_body_is_scored_like_any_other() -> None:
    scheduler = FixedScheduler()
    it = exchange(scheduler)
    it.feed(request_headers("/v1/models", method="GET", end=True, subset=["10.0.0.2:8000"]))
    assert (it.destination, len(scheduler.requests)) == ("10.0.0.2:8000", 1)


def test_nothing_is_answered_in_observability_mode_and_nothing_counted() -> None:
    scheduler = FixedScheduler()
    it = exchange(scheduler)
    assert it.feed(request_headers(observability=True), request_body(), x.response_headers()) == []
    assert (scheduler.requests, it.stream.finished) == ([], False)


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


def test_a_body_that_does_not_matter_is_not_held() -> None:
    it = exchange()
    it.feed(request_headers("/v1/files"))
    it.feed(request_body(b"x" * 1000, end=False))
    assert (it.kinds, it.stream.held_bytes) == (["request_headers", "request_body"], 0)


def test_a_compressed_body_is_routed_without_being_read() -> None:
    it = exchange()
    it.feed(request_headers(headers={"content-encoding": "gzip"}), request_body(b"\x1f\x8b\x08"))
    assert (it.destination, it.body) == (PICK, b"\x1f\x8b\x08")


def test_a_partial_body_gives_the_model_but_no_prompt() -> None:
    scheduler = FixedScheduler(model="n")
    it = exchange(scheduler)
    it.feed(request_headers(mode=x.BUFFERED_PARTIAL), request_body(b'{"model":"m","messages":[{"ro', end=False))
    assert (it.destination, scheduler.requests[0].model, scheduler.requests[0].body) == (PICK, "m", None)
    assert it.replies[-1].request_body.response.body_mutation.body == b'{"model":"n","messages":[{"ro'


def test_an_upload_of_single_bytes_costs_what_it_has() -> None:
    it = exchange()
    it.feed(request_headers("/v1/completions"))
    message = request_body(b"x", end=False)
    chunks = [bytes(bytearray(message)) for _ in range(20_000)]
    tracemalloc.start()
    try:
        for chunk in chunks:
            it.stream.receive(chunk, 1)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert it.stream.held_bytes == 20_000
    assert held < 60_000
    it.feed(request_body(CHAT))
    assert it.refusal.status.code == 400
    assert it.stream.held_bytes == it.stream._core.counters.held_bytes == 0


def test_a_thousand_open_streams_are_small() -> None:
    core = ProtocolCore(FixedScheduler(), ProtocolSettings(response="observe"))
    messages = [request_headers(response_mode=x.FULL_DUPLEX), request_body(CHAT * 1), x.response_headers()]
    streams = [Exchange(core) for _ in range(10)]
    for it in streams:
        it.feed(*messages)
    tracemalloc.start()
    try:
        open_ones = []
        for _ in range(1000):
            it = Exchange(core)
            for message in messages:
                it.stream.receive(message, 1)
            open_ones.append(it.stream)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / 1000 < 3000


def test_an_8_mb_body_is_copied_no_more_than_twice() -> None:
    size = 8 << 20
    body = b'{"model":"m","prompt":"' + b"x" * size + b'"}'
    chunks = [request_body(body[at : at + 65_536], end=False) for at in range(0, len(body), 65_536)]
    messages = [request_headers("/v1/completions"), *chunks, request_body(b"")]
    it = exchange()
    tracemalloc.start()
    try:
        for message in messages[:-1]:
            it.stream.receive(message, 1)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        out = it.stream.receive(messages[-1], 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(map(len, out)) > size
    assert held < size / 8, "chunks are held where they came"
    assert peak - held < 2.2 * size, "one copy to read it whole, one to send it on"

"""Public field bugs and known traps of the protocol, each by its report; each test fails without its guard."""

from __future__ import annotations

import json

import pytest

from support import extproc as x
from support.extproc import CHAT, request_body, request_headers, set_headers
from support.schedulers import FixedScheduler
from unit.picker.protocol.exchanges import PICK, exchange
from zerohop_picker.request.model import RequestKind
from zerohop_picker.scheduling_contract import Outcome, Refusal


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

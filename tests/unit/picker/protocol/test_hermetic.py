"""The hermetic ext-proc cases of the field's pickers, in our own words: what goes in, exactly what comes out.

(The cases about scores are the scheduler's; here an endpoint list is given.)
"""

from __future__ import annotations

import json

import pytest

from support import extproc as x
from support.extproc import CHAT, Exchange, removed_headers, request_body, request_headers, set_headers
from support.schedulers import FixedScheduler
from unit.picker.protocol.exchanges import PICK, exchange
from zerohop_picker.protocol import ProtocolCore, ProtocolSettings
from zerohop_picker.request.model import RequestKind
from zerohop_picker.scheduling_contract import Refusal


def test_the_exact_replies_to_a_chat_request() -> None:
    it = exchange()
    it.feed(request_headers(), request_body())
    head, body = it.replies
    assert set_headers(head) == {"x-gateway-destination-endpoint": PICK, "content-length": str(len(CHAT))}
    assert head.request_headers.response.clear_route_cache
    assert it.destination == PICK
    assert body.request_body.response.body_mutation.streamed_response.body == CHAT
    assert body.request_body.response.body_mutation.streamed_response.end_of_stream
    assert not body.HasField("dynamic_metadata")


def test_a_saturated_pool_still_takes_what_is_not_sheddable() -> None:
    sheddable = Refusal(429, "rejected-saturated", "saturated", 2)
    scheduler = FixedScheduler(refuse=lambda r: sheddable if r.objective == "batch" else None)
    it = exchange(scheduler)
    it.feed(request_headers(), request_body())
    assert it.destination == PICK
    it = exchange(scheduler)
    it.feed(request_headers(headers={"x-gateway-inference-objective": "batch"}), request_body())
    assert it.refusal.status.code == 429
    assert set_headers(it.replies[0]) == {
        "content-type": "application/json",
        "x-llm-d-request-dropped-reason": "rejected-saturated",
        "retry-after": "2",
    }
    assert json.loads(it.refusal.body)["error"] == {
        "message": "saturated",
        "type": "rate_limit_error",
        "param": None,
        "code": "rejected-saturated",
    }


def test_a_body_that_is_no_json_passes_where_none_is_expected() -> None:
    it = exchange()
    it.feed(request_headers("/v1/files"), request_body(b"\xff\x00not json", end=False), request_body(b"!"))
    assert (it.destination, it.body) == (PICK, b"\xff\x00not json!")


def test_invalid_json_is_400() -> None:
    it = exchange()
    it.feed(request_headers(), request_body(b"no healthy upstream"))
    assert it.refusal.status.code == 400
    assert b"healthy" not in it.refusal.body


def test_no_ready_endpoint_is_503_also_without_a_body() -> None:
    for messages in ([request_headers(method="GET", end=True)], [request_headers(), request_body()]):
        it = exchange(FixedScheduler([]))
        it.feed(*messages)
        assert it.refusal.status.code == 503
        assert set_headers(it.replies[0])["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"


def test_a_missing_model_is_400() -> None:
    it = exchange()
    it.feed(request_headers(), request_body(b'{"messages":[]}'))
    assert json.loads(it.refusal.body)["error"] == {
        "message": "model not found in request body",
        "type": "invalid_request_error",
        "param": "model",
        "code": None,
    }


@pytest.mark.parametrize("where", ["headers", "body", "both"])
@pytest.mark.parametrize(
    ("subset", "outcome"),
    [
        (["10.0.0.1:8000", "10.0.0.2:8000"], PICK),
        (["10.0.0.9:8000", "10.0.0.2:8000"], "10.0.0.2:8000"),
        (["10.0.0.2"], "10.0.0.2:8000"),
        ("10.0.0.2:8000,10.0.0.9:1", "10.0.0.2:8000"),
        (["10.0.0.1:8001"], 503),
        (["10.0.0.9:8000"], 503),
        ([], 503),
        ("", 503),
        (" , ", 503),
    ],
)
def test_subsets(where: str, subset: list[str] | str, outcome: str | int) -> None:
    it = exchange()
    it.feed(
        request_headers(subset=subset if where in ("headers", "both") else None),
        request_body(CHAT[:9], end=False),
        request_body(CHAT[9:], subset=subset if where in ("body", "both") else None),
    )
    assert (it.refusal.status.code if it.refusal else it.destination) == outcome


def test_of_two_hints_the_last_that_names_anything_wins() -> None:
    it = exchange()
    it.feed(request_headers(subset=["10.0.0.1:8000"]), request_body(subset=["10.0.0.2:8000"]))
    assert it.destination == "10.0.0.2:8000"
    it = exchange()
    it.feed(request_headers(subset=["10.0.0.1:8000"]), request_body(subset=[]))
    assert it.destination == "10.0.0.1:8000"


def test_a_hint_of_a_wrong_type_allows_nothing() -> None:
    message = x.envoy.ProcessingRequest.FromString(request_headers(end=True))
    message.metadata_context.filter_metadata["envoy.lb.subset_hint"].update(
        {"x-gateway-destination-endpoint-subset": 7}
    )
    it = exchange()
    it.feed(message.SerializeToString())
    assert it.refusal.status.code == 503


def test_a_model_that_is_in_no_objective_goes_by_its_own_name() -> None:
    scheduler = FixedScheduler()
    exchange(scheduler).feed(request_headers(), request_body())
    assert (scheduler.requests[0].model, scheduler.requests[0].kind) == ("llama-3", RequestKind.CHAT)


@pytest.mark.parametrize("mode", [x.FULL_DUPLEX, x.BUFFERED])
def test_a_rewrite_changes_the_model_and_the_length_and_nothing_else(mode: int) -> None:
    it = exchange(FixedScheduler(model="llama-3-lora"))
    it.feed(request_headers(mode=mode), request_body())
    expected = CHAT.replace(b"llama-3", b"llama-3-lora")
    assert set_headers(it.replies[-1 if mode == x.BUFFERED else 0])["content-length"] == str(len(expected))
    got = it.replies[-1].request_body.response.body_mutation
    assert (got.body or got.streamed_response.body) == expected


def test_no_rewrite_leaves_a_buffered_body_alone() -> None:
    for model in (None, "llama-3"):
        it = exchange(FixedScheduler(model=model))
        it.feed(request_headers(mode=x.BUFFERED), request_body())
        assert not it.replies[-1].request_body.response.HasField("body_mutation")
        assert "content-length" not in set_headers(it.replies[-1])


def test_a_get_has_one_reply() -> None:
    it = exchange()
    it.feed(request_headers("/v1/models?x=1", method="GET", end=True))
    assert (it.kinds, it.destination) == (["request_headers"], PICK)
    assert "content-length" not in set_headers(it.replies[0])


@pytest.mark.parametrize("chunks", [[b'{"a":', b"1}"], [b"{broken"], [b'{"a":1}', b""], [b""]])
def test_response_bodies_go_back_as_they_came(chunks: list[bytes]) -> None:
    it = exchange(response="observe")
    it.feed(request_headers(response_mode=x.FULL_DUPLEX), request_body(), x.response_headers())
    for at, chunk in enumerate(chunks):
        (reply,) = it.feed(x.response_body(chunk, end=at == len(chunks) - 1))
        streamed = reply.response_body.response.body_mutation.streamed_response
        assert (streamed.body, streamed.end_of_stream) == (chunk, at == len(chunks) - 1)


def test_what_the_decision_adds() -> None:
    scheduler = FixedScheduler(
        request_headers=(("x-prefiller-host-port", b"10.0.0.3:8000"),),
        response_headers=(("x-session-token", b"abc"),),
        metadata={"x-gateway-destination-endpoint-scores": {"10.0.0.1:8000": 0.5}},
    )
    it = exchange(scheduler)
    it.feed(request_headers(response_mode=x.FULL_DUPLEX), request_body())
    assert set_headers(it.replies[0])["x-prefiller-host-port"] == "10.0.0.3:8000"
    fields = it.replies[0].dynamic_metadata.fields["envoy.lb"].struct_value.fields
    scores = fields["x-gateway-destination-endpoint-scores"].struct_value.fields
    assert scores["10.0.0.1:8000"].number_value == 0.5
    assert it.destination == PICK
    (head,) = it.feed(x.response_headers())
    assert set_headers(head) == {"x-session-token": "abc"}


def test_conformance_headers() -> None:
    scheduler = FixedScheduler()
    it = exchange(scheduler, conformance_headers=True)
    it.feed(
        request_headers(
            headers={"test-epp-endpoint-selection": "10.0.0.2"}, subset=["10.0.0.1:8000"], response_mode=x.FULL_DUPLEX
        ),
        request_body(),
    )
    assert it.destination == "10.0.0.2:8000"
    assert scheduler.requests[0].test_selection == ("10.0.0.2",)
    assert set_headers(it.replies[0])["x-echo-set-header"] == "x-conformance-test-served-endpoint:10.0.0.2:8000"
    (head,) = it.feed(x.response_headers(served="10.0.0.2:8000"))
    assert set_headers(head) == {"x-conformance-test-served-endpoint": "10.0.0.2:8000"}
    assert scheduler.tickets[0].served_by == ["10.0.0.2:8000"]


def test_conformance_headers_say_what_is_missing() -> None:
    for metadata, text in (
        (None, "fail: missing envoy lb metadata"),
        ({}, "fail: missing destination endpoint served metadata"),
    ):
        message = x.envoy.ProcessingRequest.FromString(x.response_headers())
        if metadata is not None:
            message.metadata_context.filter_metadata["envoy.lb"].SetInParent()
        it = exchange(conformance_headers=True)
        it.feed(request_headers(end=True, response_mode=x.FULL_DUPLEX))
        (head,) = it.feed(message.SerializeToString())
        assert set_headers(head) == {"x-conformance-test-served-endpoint": text}


def test_without_the_flag_the_test_header_steers_nothing() -> None:
    it = exchange()
    it.feed(request_headers(headers={"test-epp-endpoint-selection": "10.0.0.2"}, end=True))
    assert it.destination == PICK


def test_served_endpoints_are_counted_against_those_asked_for() -> None:
    it = exchange(response="observe")
    it.feed(request_headers(end=True), x.response_headers(served="10.0.0.2:8000"))
    assert it.stream._core.counters.served == {("10.0.0.1:8000", "10.0.0.2:8000"): 1}


def test_where_the_gateway_allows_it_a_body_is_asked_for() -> None:
    it = exchange(ask_for_body=True)
    it.feed(request_headers(mode=x.NONE))
    assert it.replies[0].mode_override.request_body_mode == x.BUFFERED
    assert it.replies[0].mode_override.response_header_mode == 2  # SKIP
    assert removed_headers(it.replies[0]) == []
    it.feed(request_body())
    assert it.destination == PICK
    it = exchange(ask_for_body=True)
    it.feed(request_headers("/tokenize", mode=x.NONE))
    assert (it.destination, it.replies[0].HasField("mode_override")) == (PICK, False)


def test_asking_for_the_body_keeps_the_modes_of_the_response_that_is_observed() -> None:
    it = exchange(ask_for_body=True, response="observe")
    it.feed(request_headers(mode=x.NONE, response_mode=x.STREAMED))
    assert it.replies[0].mode_override.response_body_mode == x.STREAMED
    assert it.replies[0].mode_override.response_header_mode == 0  # as configured


def test_past_the_deadline_the_fallback_policy_answers() -> None:
    scheduler = FixedScheduler()
    core = ProtocolCore(scheduler, ProtocolSettings(deadline_ns=50_000_000))
    it = Exchange(core)
    it.feed(request_headers())
    it.stream.receive(request_body(), 1_050_000_000, 1_000_000_000)
    assert scheduler.fallbacks == 0
    late = Exchange(core)
    late.feed(request_headers())
    late.stream.receive(request_body(), 1_050_000_001, 1_000_000_000)
    assert (scheduler.fallbacks, core.counters.deadline_fallbacks) == (1, 1)
    assert scheduler.requests[-1].deadline_ns == 1_050_000_000


def test_a_slow_upload_does_not_count_against_the_deadline() -> None:
    scheduler = FixedScheduler()
    it = Exchange(ProtocolCore(scheduler))
    it.feed(request_headers())
    it.now_ns += 60_000_000_000
    it.feed(request_body())
    assert scheduler.fallbacks == 0


class _Failing(FixedScheduler):
    def schedule(self, request: object, now_ns: int) -> object:  # type: ignore[override]
        raise RuntimeError("a plugin's bug")

    def fallback(self, request: object, now_ns: int) -> object:  # type: ignore[override]
        return FixedScheduler.schedule(self, request, now_ns)  # type: ignore[arg-type]


def test_a_scheduler_that_fails_costs_no_request() -> None:
    core = ProtocolCore(_Failing())  # type: ignore[arg-type]
    it = Exchange(core)
    it.feed(request_headers(), request_body())
    assert it.destination == PICK
    assert (core.counters.scheduler_failures, str(core.counters.last_failure)) == (1, "a plugin's bug")


def test_when_both_policies_fail_the_answer_is_500() -> None:
    class Hopeless(_Failing):
        def fallback(self, request: object, now_ns: int) -> object:  # type: ignore[override]
            raise RuntimeError("again")

    it = Exchange(ProtocolCore(Hopeless()))  # type: ignore[arg-type]
    it.feed(request_headers(), request_body())
    assert it.refusal.status.code == 500
    assert b"again" not in it.refusal.body


def test_a_grpc_client_gets_a_grpc_status() -> None:
    it = exchange(FixedScheduler([]))
    it.feed(request_headers("/p.S/M", headers={"content-type": "application/grpc+proto"}))
    assert (it.refusal.status.code, it.refusal.grpc_status.status) == (503, 14)


def test_the_front_can_refuse() -> None:
    it = exchange()
    it.feed(request_headers())
    (reply,) = it.stream.refuse(503, "rejected-shutting-down", "the picker is shutting down")
    refusal = x.envoy.ProcessingResponse.FromString(reply)
    assert refusal.immediate_response.status.code == 503
    assert any(option.header.key == "retry-after" for option in refusal.immediate_response.headers.set_headers)
    assert it.stream.refuse(503, "", "twice") == []
    assert it.stream._core.counters.refusals == {(503, "rejected-shutting-down"): 1}

"""Paths, header names, ids, and the subset hint."""

from __future__ import annotations

import uuid

import pytest

from zerohop_picker.request import headers as names
from zerohop_picker.request.build import build, read_line
from zerohop_picker.request.model import LLMRequest, RequestKind
from zerohop_picker.request.paths import GRPC, OTHER, ROUTES, BodyNeed, Route, route
from zerohop_picker.request.subset import split_list, subset

CHAT = ROUTES["/v1/chat/completions"]


@pytest.mark.parametrize(
    ("method", "path", "content_type", "expected"),
    [
        ("POST", "/v1/chat/completions", "application/json", CHAT),
        ("POST", "/v1/chat/completions/", "", CHAT),
        ("POST", "/team/a/v1/chat/completions", "application/json", CHAT),
        ("POST", "/xv1/chat/completions", "application/json", OTHER),
        ("GET", "/v1/chat/completions", "", OTHER),
        ("POST", "/v1/chat/completions", "application/grpc+proto", GRPC),
        ("POST", "/vllm.grpc.engine.VllmEngine/Generate", "application/grpc", GRPC),
        ("POST", "/inference/v1/generate", "", Route(RequestKind.GENERATE, BodyNeed.JSON)),
        ("POST", "/v1/audio/transcriptions", "multipart/form-data", Route(RequestKind.AUDIO, BodyNeed.FORM)),
        ("POST", "/v1/responses/resp_1/cancel", "", OTHER),
        ("POST", "", "", OTHER),
        ("POST", "/", "", OTHER),
        ("POST", "///", "", OTHER),
        ("DELETE", "/v1/responses", "", OTHER),
    ],
)
def test_routes(method: str, path: str, content_type: str, expected: Route) -> None:
    assert route(method, path, content_type) == expected


def _built(**headers: str) -> LLMRequest:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return _from({":method": "POST", ":path": "/v1/chat/completions?x=1", **fields})


def _from(headers: dict[str, str]) -> LLMRequest:
    return build(headers, read_line(headers), None)


@pytest.mark.parametrize("prefix", ["x-llm-d-inference-", "x-gateway-inference-"])
def test_objective_and_fairness_by_new_and_legacy_name(prefix: str) -> None:
    request = _from({prefix + "objective": "batch", prefix + "fairness-id": "team-a"})
    assert (request.objective, request.fairness_id) == ("batch", "team-a")


def test_defaults() -> None:
    request = _built()
    assert (request.objective, request.fairness_id, request.target_model) == (None, "default-flow", None)
    assert (request.ttft_slo_ms, request.session_id, request.body, request.prompt_bytes) == (None, None, None, 0)
    assert (request.method, request.path, request.kind) == ("POST", "/v1/chat/completions", RequestKind.CHAT)


def test_the_new_name_wins_and_an_empty_one_does_not() -> None:
    assert _built(x_llm_d_model_name_rewrite="a", x_gateway_model_name_rewrite="b").target_model == "a"
    assert _built(x_llm_d_model_name_rewrite="", x_gateway_model_name_rewrite="b").target_model == "b"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("250", 250.0), ("0.5", 0.5), ("0", None), ("-1", None), ("nan", None), ("inf", None), ("x", None)],
)
def test_milliseconds(text: str, expected: float | None) -> None:
    assert _built(x_llm_d_slo_ttft_ms=text).ttft_slo_ms == expected
    assert _built(x_slo_tpot_ms=text).tpot_slo_ms == expected


def test_sessions() -> None:
    request = _built(x_session_token="tok", x_session_id="sid")
    assert (request.session_token, request.session_id) == ("tok", "sid")


def test_new_ids_are_uuids_and_differ() -> None:
    made = {names.new_request_id() for _ in range(200)}
    assert len(made) == 200
    for text in made:
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.version, parsed.variant) == (text, 4, uuid.RFC_4122)


@pytest.mark.parametrize(
    ("entries", "endpoint", "allowed"),
    [
        (["10.0.0.1:8000"], "10.0.0.1:8000", True),
        (["10.0.0.1:8000"], "10.0.0.1:8001", False),
        (["10.0.0.1:80"], "10.0.0.1:8000", False),
        (["10.0.0.1"], "10.0.0.1:8001", True),
        (["10.0.0.1"], "10.0.0.10:8001", False),
        (["[fd00::1]:8000"], "[fd00::1]:8000", True),
        (["[fd00:0:0::1]:8000"], "[fd00::1]:8000", True),
        (["[FD00::1]:8000"], "[fd00::1]:8001", False),
        (["fd00::1"], "[fd00::1]:8000", True),
        (["[fd00::1]"], "[fd00::1]:8000", True),
        (["host.example:80"], "host.example:80", True),
        (["", "x", ":"], "10.0.0.1:8000", False),
        ([], "10.0.0.1:8000", False),
    ],
)
def test_subset(entries: list[str], endpoint: str, allowed: bool) -> None:
    assert subset(entries).allows(endpoint) is allowed


def test_lists() -> None:
    assert split_list(" a:1 ,, b:2,") == ("a:1", "b:2")
    assert split_list(" , ") == ()

"""From headers and body to the `LLMRequest` that a scheduler sees."""

from __future__ import annotations

from collections.abc import Mapping

from zerohop_picker.request import body as bodies
from zerohop_picker.request import headers as names
from zerohop_picker.request import multipart
from zerohop_picker.request.body import BodyFacts
from zerohop_picker.request.model import DEFAULT_FAIRNESS_ID, LLMRequest
from zerohop_picker.request.paths import BodyNeed, Route


def build(headers: Mapping[str, str], route: Route, path: str, body: bytes | None, *, whole: bool = True) -> LLMRequest:
    """One request. `body` is None where the gateway shows none; with `whole` False it is only its beginning.

    Raises:
        BodyError: the body is not what the path requires.
    """
    facts = bodies.NOTHING if body is None else _facts(headers, route, body, whole=whole)
    request = LLMRequest(
        headers.get(names.REQUEST_ID) or names.new_request_id(),
        headers.get(":method", "POST"),
        path,
        headers,
        route.kind,
        None,
        facts.model,
        facts.stream,
        body if whole and route.need is not BodyNeed.NOTHING else None,
    )
    if not names.STEERING.isdisjoint(headers):
        _read_steering(request, headers)
    return request


def _read_steering(request: LLMRequest, headers: Mapping[str, str]) -> None:
    request.objective = names.either(headers, names.OBJECTIVE)
    request.fairness_id = names.either(headers, names.FAIRNESS_ID) or DEFAULT_FAIRNESS_ID
    request.target_model = names.either(headers, names.TARGET_MODEL)
    request.session_token = headers.get(names.SESSION_TOKEN)
    request.session_id = headers.get(names.SESSION_ID)
    request.ttft_slo_ms = names.milliseconds(headers, names.TTFT_SLO)
    request.tpot_slo_ms = names.milliseconds(headers, names.TPOT_SLO)


def _facts(headers: Mapping[str, str], route: Route, body: bytes, *, whole: bool) -> BodyFacts:
    need = route.need
    if need is BodyNeed.NOTHING or headers.get("content-encoding", "identity") != "identity":
        return bodies.NOTHING
    content_type = headers.get("content-type", "")
    if content_type.startswith("multipart/"):
        return BodyFacts(multipart.read_model(body, content_type), stream=False)
    if not whole:
        return BodyFacts(bodies.model_of_beginning(body), stream=False)
    if need is BodyNeed.FORM:
        try:
            return bodies.read_json(body, model_required=False)
        except bodies.BodyError:
            return bodies.NOTHING  # no form and no JSON: the model server judges it
    return bodies.read_json(body, model_required=need is BodyNeed.MODEL)

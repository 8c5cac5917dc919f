"""From headers and body to the `LLMRequest` that a scheduler sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zerohop_picker.request import body as bodies
from zerohop_picker.request import headers as names
from zerohop_picker.request import multipart
from zerohop_picker.request.model import DEFAULT_FAIRNESS_ID, LLMRequest
from zerohop_picker.request.paths import OTHER, BodyNeed, Route, route
from zerohop_picker.request.shapes import BodyFacts

# Looked up once: an enum member by name costs more than the comparison.
_NOTHING, _MODEL, _FORM = BodyNeed.NOTHING, BodyNeed.MODEL, BodyNeed.FORM


class Line(NamedTuple):
    """What a request's headers say first, read once."""

    method: str
    #: Without the query.
    path: str
    content_type: str
    route: Route


#: Stands where no headers came yet.
NO_LINE = Line("", "", "", OTHER)


def read_line(headers: Mapping[str, str]) -> Line:
    """Method, path, content type, and what they ask for."""
    get = headers.get
    method, path, content_type = get(":method", "POST"), get(":path", "/"), get("content-type", "")
    if "?" in path:
        path = path[: path.index("?")]
    return Line(method, path, content_type, route(method, path, content_type))


def build(headers: Mapping[str, str], line: Line, body: bytes | None, *, whole: bool = True) -> LLMRequest:
    """One request. `body` is None where the gateway shows none; with `whole` False it is only its beginning.

    `request_id` is "" when the headers have none.

    Raises:
        BodyError: the body is not what the path requires.
    """
    kind, need = line.route
    facts = bodies.NOTHING if body is None or need is _NOTHING else _facts(headers, line, body, whole=whole)
    request = LLMRequest(
        headers.get(names.REQUEST_ID, ""),
        line.method,
        line.path,
        headers,
        kind,
        None,
        facts.model,
        facts.stream is True,
        body if whole and need is not _NOTHING else None,
    )
    if not names.are_plain(headers):
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


def _facts(headers: Mapping[str, str], line: Line, body: bytes, *, whole: bool) -> BodyFacts:
    need = line.route.need
    if not names.are_plain(headers) and headers.get("content-encoding", "identity") != "identity":
        return bodies.NOTHING
    if line.content_type.startswith("multipart/"):
        return BodyFacts(multipart.read_model(body, line.content_type))
    if not whole:
        return BodyFacts(bodies.model_of_beginning(body))
    if need is _FORM:
        try:
            return bodies.read_json(body, model_required=False)
        except bodies.BodyError:
            return bodies.NOTHING  # no form and no JSON: the model server judges it
    return bodies.read_json(body, model_required=need is _MODEL)

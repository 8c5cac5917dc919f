"""The answers to requests that get no endpoint."""

from __future__ import annotations

from typing import Final

from zerohop_picker.request.model import LLMRequest
from zerohop_picker.scheduling.pipeline import Nothing
from zerohop_picker.scheduling_contract import Refusal

NO_ENDPOINTS: Final = "rejected-no-endpoints"
SATURATED: Final = "rejected-saturated"
#: What a shed request is told: about the time in which a full queue moves on.
RETRY_AFTER_S: Final = 1

NO_SNAPSHOT: Final = Refusal(503, NO_ENDPOINTS, "no snapshot of the endpoints can be read yet")
NO_CANDIDATES: Final = Refusal(503, NO_ENDPOINTS, "failed to find endpoint candidates for serving the request")
#: Any endpoint might be of the wrong pool. Which pools there are is no business of a client: the log says it.
AMBIGUOUS_POOL: Final = Refusal(503, NO_ENDPOINTS, "several pools are served here, and the stream names none of them")
SHED: Final = Refusal(429, SATURATED, "system saturated, sheddable request dropped", RETRY_AFTER_S)


def unknown_pool(pool: str | None) -> Refusal:
    """The pool is not in the snapshot."""
    return Refusal(503, NO_ENDPOINTS, f"pool {pool!r} is not in the snapshot")


def reserved(request: LLMRequest) -> Refusal:
    """The model's name is registered, and all its targets have weight 0."""
    return Refusal(404, "", f"model {request.model!r} is reserved: none of its targets has a weight above 0")


def dropped(nothing: Nothing) -> Refusal:
    """A filter left no endpoint: 503 where none can serve, 429 where none should right now."""
    if nothing.structural:
        return Refusal(503, NO_ENDPOINTS, f"no endpoint passes {nothing.plugin}")
    return Refusal(429, SATURATED, f"no endpoint passes {nothing.plugin} now", RETRY_AFTER_S)

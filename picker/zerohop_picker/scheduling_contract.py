"""What the protocol core asks of a scheduler, and what it gets back.

The core calls `schedule` once per request, on the event loop, with all that can be known of the request. What comes
back is a `Decision` (an ordered list of endpoints and a ticket) or a `Refusal` (an HTTP answer). A scheduler never
raises for anything a client or gateway sent.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from zerohop_picker.request.model import LLMRequest


class Outcome(enum.StrEnum):
    """How a picked request ended, as far as the picker saw it."""

    #: The response was seen to its end (or `[DONE]` was).
    COMPLETE = "complete"
    #: The stream ended before the response did: the client went away, or the gateway gave up.
    ABORTED = "aborted"
    #: The model server answered with a status of 500 or more.
    SERVER_ERROR = "server-error"
    #: The picker left after the request; how it ended is not known.
    UNOBSERVED = "unobserved"


class Ticket(Protocol):
    """One pick's place in the in-flight counts."""

    def served(self, endpoint: str) -> None:
        """The gateway says that `endpoint` (`ip:port`) served the request; it may differ from the one picked."""

    def first_token(self) -> None:
        """The first byte of the response body was seen."""

    def finish(self, outcome: Outcome) -> None:
        """The request is over. Called exactly once by the core; a second call changes nothing."""


@dataclass(slots=True)  # not frozen: that would cost each request a microsecond
class Decision:
    """Where a request goes. Nobody changes it."""

    #: Ordered `ip:port` texts (IPv6 in brackets), best first, at least one; the gateway retries down the list.
    endpoints: tuple[str, ...]
    ticket: Ticket
    #: The model name to put in the body; None leaves the body untouched.
    model: str | None = None
    #: Set on the request that is forwarded (overwriting).
    request_headers: tuple[tuple[str, bytes], ...] = ()
    #: Set on the response; a decision with any makes the core stay for the response headers.
    response_headers: tuple[tuple[str, bytes], ...] = ()
    #: Further fields of the dynamic metadata `envoy.lb` (numbers or strings), such as scores.
    metadata: Mapping[str, Any] | None = None
    debug: Any = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not forwarded: becomes an immediate response with an OpenAI-shaped JSON error."""

    status: int
    #: Value of `x-llm-d-request-dropped-reason`, "" for none.
    reason: str
    message: str
    retry_after_s: int | None = None


class Scheduler(Protocol):
    """Chooses endpoints."""

    def schedule(self, request: LLMRequest, now_ns: int) -> Decision | Refusal:
        """The decision by the configured pipeline. `now_ns` is CLOCK_MONOTONIC."""

    def fallback(self, request: LLMRequest, now_ns: int) -> Decision | Refusal:
        """The decision without plugins, used past the deadline: least waiting + picks among usable endpoints."""

    def ready(self, pool: str | None) -> bool:
        """Whether there is something to choose from in `pool`."""

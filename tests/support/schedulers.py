"""Schedulers for tests: as little as the contract asks, and they count what was asked of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zerohop_picker.request.model import LLMRequest
from zerohop_picker.request.subset import subset
from zerohop_picker.scheduling_contract import Decision, Outcome, Refusal

NO_ENDPOINTS = Refusal(503, "rejected-no-endpoints", "no endpoint is ready")


class CountingTicket:
    """Counts what the core tells it."""

    def __init__(self, owner: FixedScheduler):
        self._owner = owner
        self.outcomes: list[Outcome] = []
        self.served_by: list[str] = []
        self.first_tokens = 0

    def served(self, endpoint: str) -> None:
        self.served_by.append(endpoint)

    def first_token(self) -> None:
        self.first_tokens += 1

    def finish(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if len(self.outcomes) == 1:
            self._owner.in_flight -= 1


class FixedScheduler:
    """Offers the same endpoints, in order, to every request; honours the subset."""

    def __init__(
        self,
        endpoints: Sequence[str] = ("10.0.0.1:8000", "10.0.0.2:8000"),
        *,
        model: str | None = None,
        request_headers: tuple[tuple[str, bytes], ...] = (),
        response_headers: tuple[tuple[str, bytes], ...] = (),
        metadata: dict[str, object] | None = None,
        refuse: Callable[[LLMRequest], Refusal | None] = lambda request: None,
    ):
        self.endpoints = tuple(endpoints)
        self.model = model
        self.request_headers = request_headers
        self.response_headers = response_headers
        self.metadata = metadata
        self.refuse = refuse
        self.requests: list[LLMRequest] = []
        self.fallbacks = 0
        self.in_flight = 0
        self.tickets: list[CountingTicket] = []

    def schedule(self, request: LLMRequest, now_ns: int) -> Decision | Refusal:
        self.requests.append(request)
        refusal = self.refuse(request)
        if refusal is not None:
            return refusal
        allowed = self.endpoints
        if request.subset is not None:
            among = subset(request.subset)
            allowed = tuple(endpoint for endpoint in allowed if among.allows(endpoint))
        if not allowed:
            return NO_ENDPOINTS
        self.in_flight += 1
        self.tickets.append(CountingTicket(self))
        return Decision(
            allowed,
            self.tickets[-1],
            model=self.model,
            request_headers=self.request_headers,
            response_headers=self.response_headers,
            metadata=self.metadata,
        )

    def fallback(self, request: LLMRequest, now_ns: int) -> Decision | Refusal:
        self.fallbacks += 1
        return self.schedule(request, now_ns)

    def ready(self, pool: str | None) -> bool:
        return bool(self.endpoints)

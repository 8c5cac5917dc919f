"""What the streams of one worker share, and the one place where a request becomes a decision."""

from __future__ import annotations

from collections.abc import Mapping

from zerohop_picker.protocol import refusals
from zerohop_picker.protocol.errors import PeerError
from zerohop_picker.protocol.settings import ProtocolCounters, ProtocolSettings
from zerohop_picker.request.body import BodyError
from zerohop_picker.request.build import Line, build
from zerohop_picker.request.headers import TEST_SELECTION
from zerohop_picker.request.model import LLMRequest
from zerohop_picker.request.subset import split_list
from zerohop_picker.scheduling_contract import Decision, Refusal, Scheduler


class ProtocolCore:
    """The scheduler, the settings and the counters that every stream uses. `scheduler` may be replaced at any time."""

    __slots__ = ("counters", "scheduler", "settings")

    def __init__(
        self,
        scheduler: Scheduler,
        settings: ProtocolSettings | None = None,
        counters: ProtocolCounters | None = None,
    ):
        self.scheduler = scheduler
        self.settings = settings or ProtocolSettings()
        self.counters = counters or ProtocolCounters()

    @property
    def observes(self) -> bool:
        """Whether responses are watched to their end."""
        return self.settings.response == "observe"

    def stays(self, decision: Decision | None) -> bool:
        """Whether something is wanted of the response after `decision`."""
        settings = self.settings
        return (
            settings.response == "observe"
            or settings.conformance_headers
            or (decision is not None and bool(decision.response_headers))
        )

    def request(
        self,
        headers: Mapping[str, str],
        line: Line,
        body: bytes | None,
        subset: tuple[str, ...] | None,
        *,
        whole: bool = True,
    ) -> LLMRequest:
        """The request as the scheduler sees it; `body` and `whole` as in `build`.

        Raises:
            PeerError: 400 for a body that is not what its path requires, 503 for a subset hint that allows nothing.
        """
        try:
            request = build(headers, line, body, whole=whole)
        except BodyError as error:
            raise PeerError(refusals.bad_request(str(error))) from None
        if self.settings.conformance_headers and (selection := headers.get(TEST_SELECTION)):
            # It stands above the hint; as a subset, it needs nothing of a scheduler.
            request.test_selection = subset = split_list(selection)
        if subset is not None:
            if not subset:
                raise PeerError(refusals.SUBSET_EMPTY)
            request.subset = subset
        return request

    def decide(self, request: LLMRequest, now_ns: int, received_ns: int) -> Decision:
        """The scheduler's decision; the fallback policy's when the deadline has passed or the scheduler failed.

        Raises:
            PeerError: the request is refused.
        """
        counters = self.counters
        request.deadline_ns = received_ns + self.settings.deadline_ns
        answer: Decision | Refusal | None = None
        if now_ns > request.deadline_ns:
            counters.deadline_fallbacks += 1
        else:
            try:
                answer = self.scheduler.schedule(request, now_ns)
            except Exception as error:  # a plugin's bug must not cost a request
                self._note_failure(error)
        if answer is None:
            try:
                answer = self.scheduler.fallback(request, now_ns)
            except Exception as error:
                self._note_failure(error)
                answer = refusals.SCHEDULER_FAILED
        if isinstance(answer, Refusal):
            raise PeerError(answer)
        counters.picks += 1
        return answer

    def _note_failure(self, error: Exception) -> None:
        self.counters.scheduler_failures += 1
        self.counters.last_failure = error

"""The bad days of an API server, as a test orders them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from support.apiserver import wire
from support.apiserver.asked import Seen
from support.apiserver.store import Store


@dataclass
class Fault:
    """What some requests get instead of an answer, `left` more times."""

    matches: Callable[[Seen], bool]
    status: int
    reason: str
    headers: Mapping[str, str]
    left: int


class TroubledStore(Store):
    """A store and what goes wrong around it."""

    def __init__(self) -> None:
        super().__init__()
        #: Watches stay open and say nothing.
        self.muted = False
        #: The only bearer token that is valid; None: no token is needed.
        self.token: str | None = None
        #: This many more watches end at once, without an event.
        self.empty_watches = 0
        #: Versions older than this are expired.
        self.oldest = 0
        self.expire_as_event = False
        self._faults: list[Fault] = []
        self._forbidden: set[tuple[str, str, str | None, str | None]] = set()

    def fail(
        self,
        status: int,
        *,
        reason: str = "InternalError",
        times: int = 1,
        matches: Callable[[Seen], bool] = lambda seen: seen.verb in ("list", "watch"),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """The next `times` requests that match are answered with `status`."""
        self._faults.append(Fault(matches, status, reason, headers or {}, times))

    def expire(self, *, as_event: bool = False) -> None:
        """Forgets history: versions older than now give 410, as a status or as an ERROR event in a 200."""
        self.oldest = self.version
        self.expire_as_event = as_event
        self.changes.clear()

    def send_error(self, code: int, reason: str) -> None:
        """Sends an ERROR event into each open watch."""
        body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}
        for watch in self.watches:
            wire.event(watch.writer, "ERROR", body)

    def forbid(self, verb: str, plural: str, *, group: str | None = None, namespace: str | None = None) -> None:
        """Takes the permission for `verb` on `plural` away, in one group or namespace only where these are given."""
        self._forbidden.add((verb, plural, group, namespace))

    def allow(self, verb: str, plural: str) -> None:
        """Gives it back."""
        self._forbidden = {each for each in self._forbidden if each[:2] != (verb, plural)}

    def forbids(self, verb: str, plural: str, group: str, namespace: str | None) -> bool:
        """True for what was taken away."""
        return any(
            each[:2] == (verb, plural) and each[2] in (None, group) and each[3] in (None, namespace)
            for each in self._forbidden
        )

    def fault_for(self, seen: Seen) -> Fault | None:
        """The fault that this request meets, used up by one."""
        for fault in self._faults:
            if fault.left and fault.matches(seen):
                fault.left -= 1
                return fault
        return None

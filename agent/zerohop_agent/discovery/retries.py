"""When a reflector asks again after trouble, and what it says of it.

| trouble | what happens |
|---|---|
| an expired version | no wait; a second time without an event in between is a failure: no hot loop of lists |
| refused, reset, 5xx | back off with jitter |
| 429 | waits as long as Retry-After says |
| 403 | one clear sentence naming the permission; tries again after 2 s, then every 30 s; `denied` from the second on |
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from zerohop_agent.discovery.client import ApiStatus
from zerohop_agent.discovery.clock import Clock
from zerohop_agent.discovery.resources import Resource
from zerohop_agent.discovery.settings import DiscoverySettings
from zerohop_agent.discovery.source_state import Counters
from zerohop_process import log
from zerohop_process.log import OncePerChange

_FORBIDDEN_RETRY_S = 30.0
#: A server that starts up may refuse what it allows a moment later, so the first refusal is asked about again soon.
_FORBIDDEN_FIRST_RETRY_S = 2.0
_REFUSALS_BEFORE_DENIED = 2

_log = log.get("discovery")


@dataclass(slots=True)
class Retries:
    """The troubles of one reflector. `on_denied` is called once it is sure that there is no permission."""

    resource: Resource
    namespace: str | None
    settings: DiscoverySettings
    clock: Clock
    counters: Counters
    on_denied: Callable[[], None]
    #: One sentence while something is wrong.
    trouble: str | None = None
    #: Failures in a row.
    failures: int = 0
    _refusals: int = 0
    _expired_in_a_row: int = 0
    _said: OncePerChange = field(default_factory=OncePerChange)
    _random: random.Random = field(default_factory=random.Random)

    @property
    def denied(self) -> bool:
        """True while the server refuses to let us read this, and has done so more than once."""
        return self._refusals >= _REFUSALS_BEFORE_DENIED

    def went_well(self) -> None:
        """The server answered as it should."""
        self.failures = self._refusals = 0
        if self.trouble is not None:
            self.trouble = None
            self._said.log(_log, "info", "trouble", "", f"{self.resource}: the API server answers again")

    def saw_event(self) -> None:
        """A watch said something: it went well, and the version that it began from was a good one."""
        self.went_well()
        self._expired_in_a_row = 0

    async def refused(self, error: ApiStatus) -> None:
        """Waits after an answer that is not a success."""
        if error.code == 403:
            await self._forbidden(error)
            return
        pause_s = error.retry_after_s if error.code in (429, 503) else None
        await self.failed(f"{error.code} {error.reason}: {error.message}", pause_s)

    async def expired(self) -> None:
        """Waits after a version that was too old, if that is the second time without an event in between."""
        self.counters.expired += 1
        self._expired_in_a_row += 1
        if self._expired_in_a_row > 1:
            await self.failed("the server calls even the version of its own list expired")

    async def failed(self, sentence: str, pause_s: float | None = None) -> None:
        """Waits before the next try: as long as the server asked for, else longer each time."""
        self.counters.failures += 1
        self.failures += 1
        self._say("warning", f"{self.resource}: {sentence}; what was known is kept")
        if pause_s is None:
            most = min(self.settings.backoff_most_s, self.settings.backoff_first_s * 2.0 ** min(self.failures - 1, 16))
            pause_s = most * self._random.uniform(0.5, 1.0)
        else:
            pause_s += self._random.uniform(0, 1)
        await self.clock.sleep(pause_s)

    async def _forbidden(self, error: ApiStatus) -> None:
        self.counters.failures += 1
        self._refusals += 1
        self._say("error", self._permission_sentence(error))
        if self._refusals == _REFUSALS_BEFORE_DENIED:
            # What waits for this resource need not wait any longer.
            self.on_denied()
        soon_s = min(_FORBIDDEN_FIRST_RETRY_S, self.settings.backoff_most_s)
        retry_s = _FORBIDDEN_RETRY_S if self.denied else soon_s
        await self.clock.sleep(retry_s * self._random.uniform(0.8, 1.2))

    def _say(self, level: str, sentence: str) -> None:
        """Logs a trouble once, until it changes or ends."""
        self.trouble = sentence
        self._said.log(_log, level, "trouble", sentence, sentence)

    def _permission_sentence(self, error: ApiStatus) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        hint = "a Role there" if self.namespace else "a ClusterRole (manifests/components/all-namespaces)"
        return (
            f"no permission to list and watch {self.resource} {where}: give this service account get, list and watch "
            f"on {self.resource.plural!r} of API group {self.resource.group!r} in {hint} ({error.message})"
        )

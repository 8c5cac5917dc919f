"""One run of discovery: all sources together, and one endpoint set after another out of what they hold."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

from zerohop_agent.discovery import candidates, verdicts
from zerohop_agent.discovery.client import ApiClient
from zerohop_agent.discovery.clock import Clock, SystemClock
from zerohop_agent.discovery.customs import Custom
from zerohop_agent.discovery.lease import Lease
from zerohop_agent.discovery.resources import Role
from zerohop_agent.discovery.settings import DiscoverySettings
from zerohop_agent.discovery.sources import Sources
from zerohop_agent.discovery.status import StatusWriter
from zerohop_agent.endpoints import EndpointSet
from zerohop_process import log
from zerohop_process.log import OncePerChange

_log = log.get("discovery")

#: Steps in which the first set waits for the objects around the pools.
_FIRST_WAITS = 20


class Discovery:
    """Calls `apply` with a new set after each change. `sources` says how well each source is known."""

    def __init__(
        self,
        settings: DiscoverySettings,
        apply: Callable[[EndpointSet], None],
        clock: Clock | None = None,
        client: ApiClient | None = None,
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.sources = Sources(settings, self.clock, client)
        self.status_writer: StatusWriter | None = None
        #: Sets that were applied.
        self.applied = 0
        self._apply = apply
        self._said = OncePerChange()
        self._last: EndpointSet | None = None

    async def prepare(self) -> None:
        """Decides on the sources, before anything runs. Raises: ConfigError when one of them cannot be used."""
        await self.sources.prepare()

    async def run(self) -> None:
        """Watches and applies until cancelled. Raises: ConfigError when there is nothing to watch with."""
        await self.prepare()
        try:
            async with asyncio.TaskGroup() as group:
                self.sources.start(group)
                self._start_status_writer(group)
                group.create_task(self._publish())
        finally:
            await self.sources.close()

    # Endpoint sets.

    async def _publish(self) -> None:
        """Applies a new set after each change; changes that come together are applied together."""
        while True:
            await self.sources.changed.wait()
            await self.clock.sleep(self.settings.coalesce_s)
            self.sources.changed.clear()
            if not self._can_speak():
                continue
            for _ in range(_FIRST_WAITS):
                if not self._may_wait():
                    break
                await self.clock.sleep(self.settings.first_wait_s / _FIRST_WAITS)
            new = self._endpoint_set()
            if new != self._last:
                self._last = new
                self.applied += 1
                self._apply(new)

    def _can_speak(self) -> bool:
        """False until pods and pools were seen once: an empty set would clear what a restarted agent still has."""
        pools_are_known = self.settings.static_pool is not None or self.sources.knows_pools()
        return pools_are_known and self.sources.knows_pods()

    def _may_wait(self) -> bool:
        """True while the first set should wait a little for objectives, rewrites and models: what they say of a request
        counts from the first one on. Whatever keeps them away does not keep endpoints away for longer than that.
        """
        return self._last is None and self.sources.customs_are_coming()

    def _endpoint_set(self) -> EndpointSet:
        every = list(self.sources.customs())
        pools, complaints = candidates.pools_of(every, self.settings)
        for complaint in complaints:
            self._said.log(_log, "warning", ("pool", complaint), complaint, complaint)
        for custom in every:
            if custom.invalid is not None and custom.resource.role is not Role.POOLS:
                sentence = f"{custom.resource.kind} {custom.full_name} is not valid: {custom.invalid}"
                self._said.log(_log, "warning", ("custom", custom.uid), sentence, sentence)
        duplicates = verdicts.duplicates_of(every)
        return candidates.endpoint_set(self.sources.pods(), pools, every, frozenset(duplicates), self.settings)

    # Statuses.

    def _start_status_writer(self, group: asyncio.TaskGroup) -> None:
        client, settings = self.sources.client, self.settings
        if client is None or not settings.write_status:
            return
        identity = settings.identity or f"zerohop_{random.getrandbits(48):012x}"
        lease = Lease(client, self.clock, settings.lease_namespace, settings.lease_name, identity)
        self.status_writer = StatusWriter(client, self.clock, lease, self._wanted_statuses, settings.status_idle_s)
        group.create_task(self.status_writer.run())

    def _wanted_statuses(self) -> Iterator[tuple[Custom, verdicts.Verdict]]:
        if not self.sources.synced(Role.POOLS):
            return
        every = list(self.sources.customs())
        names = {custom.full_name for custom in every if custom.resource.role is Role.POOLS}
        duplicates = verdicts.duplicates_of(every)
        for custom in every:
            if custom.resource.role is Role.MODELS:
                yield custom, verdicts.verdict_on(custom, names, duplicates)

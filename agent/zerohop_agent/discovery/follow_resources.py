"""Asks the API server again and again which of our resources it has: a CRD can come and go at any time."""

from __future__ import annotations

import random
from collections.abc import Callable

from zerohop_agent.discovery import resources
from zerohop_agent.discovery.client import ApiClient, ApiStatus, ApiUnreachable
from zerohop_agent.discovery.clock import Clock
from zerohop_agent.discovery.resources import Resource, Role
from zerohop_agent.discovery.settings import DiscoverySettings
from zerohop_process import log
from zerohop_process.log import OncePerChange

_log = log.get("discovery")


class ResourceFollower:
    """Calls `use` with the resources to read, after each answer of the API server."""

    def __init__(
        self, client: ApiClient, settings: DiscoverySettings, clock: Clock, use: Callable[[tuple[Resource, ...]], None]
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._use = use
        self._said = OncePerChange()

    async def run(self) -> None:
        """Asks until cancelled."""
        settings, failures = self._settings, 0
        await self._clock.sleep(random.uniform(0, settings.start_jitter_s))
        while True:
            try:
                available = await resources.served(self._client)
            except (ApiStatus, ApiUnreachable) as error:
                failures += 1
                self._say_no_answer(error)
                most = min(settings.backoff_most_s, settings.backoff_first_s * 2.0 ** min(failures, 16))
                await self._clock.sleep(most * random.uniform(0.5, 1.0))
                continue
            failures = 0
            self._said.changed("served", "")
            wanted = resources.chosen(available, settings.pool_group)
            self._use(wanted)
            self._say_what_is_missing(wanted)
            await self._clock.sleep(settings.api_discovery_interval_s * random.uniform(0.8, 1.2))

    def _say_no_answer(self, error: Exception) -> None:
        message = f"cannot ask the API server what it serves: {error}; trying again"
        self._said.log(_log, "warning", "served", str(error), message)

    def _say_what_is_missing(self, wanted: tuple[Resource, ...]) -> None:
        roles = {resource.role for resource in wanted}
        using = ", ".join(str(resource) for resource in wanted) or "none"
        self._said.log(_log, "info", "using", using, f"inference resources that the cluster has: {using}")
        if Role.POOLS not in roles and self._settings.static_pool is None:
            message = (
                "the InferencePool CRD is not installed, so there are no pools yet; install it "
                "(kubernetes-sigs/gateway-api-inference-extension) or describe a pool with --pod-selector"
            )
            self._said.log(_log, "warning", "pools", "missing", message)
        else:
            self._said.changed("pools", "")

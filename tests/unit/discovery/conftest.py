from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.apiserver import ApiServer
from support.waiting import eventually_async
from zerohop_agent.discovery.client import ApiClient, load_config
from zerohop_agent.discovery.clock import Clock
from zerohop_agent.discovery.session import Discovery
from zerohop_agent.discovery.settings import DiscoverySettings
from zerohop_agent.endpoints import EndpointSet

#: Waits that a test can live through.
FAST: dict[str, Any] = {
    "start_jitter_s": 0.0,
    "backoff_first_s": 0.01,
    "backoff_most_s": 0.05,
    "coalesce_s": 0.0,
    "status_idle_s": 0.02,
    "api_discovery_interval_s": 0.05,
}


class Watched:
    """A running discovery and everything that it has said."""

    def __init__(self, discovery: Discovery, sets: list[EndpointSet]) -> None:
        self.discovery = discovery
        self.sets = sets

    @property
    def now(self) -> dict[str, tuple[str, ...]]:
        """Address -> pools, of what may be picked."""
        if not self.sets:
            return {}
        return {str(spec.address): spec.pools for spec in self.sets[-1].endpoints if not spec.draining}

    @property
    def draining(self) -> set[str]:
        return {str(spec.address) for spec in self.sets[-1].endpoints if spec.draining}

    async def becomes(self, *addresses: str, timeout: float = 5.0) -> None:
        await eventually_async(
            lambda: bool(self.sets) and set(self.now) == set(addresses), timeout, f"{self.now} -> {addresses}"
        )


@pytest.fixture
def watching(tmp_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def start(
        server: ApiServer | None, clock: Clock | None = None, token: str | None = None, **settings: Any
    ) -> AsyncIterator[Watched]:
        sets: list[EndpointSet] = []
        chosen = DiscoverySettings(**({"source": "api", "node_name": "node-a", "identity": "me"} | FAST | settings))
        client = None
        if server is not None:
            client = ApiClient(load_config(server.kubeconfig(tmp_path, token)))
        discovery = Discovery(chosen, sets.append, clock, client)
        task = asyncio.create_task(discovery.run())
        try:
            yield Watched(discovery, sets)
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return start


def with_defaults(**changes: Any) -> DiscoverySettings:
    return dataclasses.replace(DiscoverySettings(source="api", node_name="node-a"), **changes)

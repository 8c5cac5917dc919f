"""A DaemonSet roll: many agents start at once, and the API server hardly notices."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support.apiserver import ApiServer, pod, pool
from support.waiting import eventually_async
from zerohop_agent.discovery.client import ApiClient, load_config
from zerohop_agent.discovery.resources import CUSTOM
from zerohop_agent.discovery.session import Discovery
from zerohop_agent.discovery.settings import DiscoverySettings

#: Each asks for the same, so ten show what a hundred do (bench.discovery runs a hundred).
AGENTS = 10


@pytest.mark.parametrize(("streaming", "most_lists"), [(True, 0), (False, 3)])
async def test_agents_make_three_list_calls_each_at_most(tmp_path: Path, streaming: bool, most_lists: int) -> None:
    async with ApiServer(streaming_lists=streaming) as server, AsyncExitStack() as stack:
        # Every CRD that we know, in both groups: the most that there can be to read.
        server.install(*CUSTOM)
        server.put(pool("llama"))
        for index in range(AGENTS):
            server.put(pod(f"p{index}", ip=f"10.0.0.{index + 1}", node=f"node-{index}"))
        config = load_config(server.kubeconfig(tmp_path))
        heard: dict[int, int] = {}

        def agent(index: int) -> asyncio.Task[None]:
            settings = DiscoverySettings(
                source="api", node_name=f"node-{index}", write_status=False, start_jitter_s=0.2, coalesce_s=0.0
            )

            def apply(said: Any) -> None:
                heard[index] = len(said.endpoints)

            return asyncio.create_task(Discovery(settings, apply, client=ApiClient(config)).run())

        tasks = [agent(index) for index in range(AGENTS)]
        stack.push_async_callback(_end, tasks)
        await eventually_async(lambda: len(heard) == AGENTS and set(heard.values()) == {1}, 30)
        await eventually_async(lambda: server.open_watches >= AGENTS * 6, 30)
        assert server.count("list") <= AGENTS * most_lists
        starts = server.count("discovery")
        assert starts == AGENTS


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

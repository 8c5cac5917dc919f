"""What discovery says of itself on the metrics page, and that the page is described."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from support.apiserver import ApiServer, pod, pool
from support.waiting import eventually_async
from zerohop_agent.discovery.metrics import DiscoveryMetrics
from zerohop_agent.discovery.resources import POOLS_V1

PAGE = Path(__file__).resolve().parents[3] / "docs" / "kubernetes.md"


async def test_age_and_trouble_of_each_source(watching: Callable[..., Any]) -> None:
    async with ApiServer() as server:
        server.install(POOLS_V1)
        server.put(pool("llama"))
        server.put(pod("a", ip="10.1.0.1"))
        async with watching(server) as watched:
            registry = CollectorRegistry()
            registry.register(DiscoveryMetrics(watched.discovery))

            def value(name: str, source: str | None = "pods") -> float | None:
                labels = {"source": source} if source is not None else {}
                return registry.get_sample_value(f"zerohop_agent_discovery_{name}", labels)

            await watched.becomes("10.1.0.1:8000")
            assert (value("up"), value("objects")) == (1, 1)
            assert value("objects", "inferencepools.inference.networking.k8s.io/v1") == 1
            assert (value("age_seconds") or 99) < 5
            assert value("sets_total", None) == 1
            await server.stop()
            await eventually_async(lambda: value("up") == 0)
            assert (value("failures_total") or 0) >= 1
            page = generate_latest(registry).decode()
    documented = PAGE.read_text()
    names = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}
    for name in names:
        assert f"`{name}`" in documented, name

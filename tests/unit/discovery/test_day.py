"""A day in a cluster, on both sources of pods: whatever happens, only what may be picked is offered.

After each step the endpoints must be exactly what the rules make of the cluster, worked out here a second time; and no
set on the way there may hold an endpoint that was right neither before nor after the step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support import apiserver, kubelet_server
from support.apiserver import ApiServer
from support.clocks import ManualClock
from support.kubelet_server import KubeletServer
from support.waiting import eventually_async
from zerohop_agent.discovery.resources import POOLS_V1

Watching = Callable[..., Any]
#: Pauses as they are in earnest: a clock that is moved by hand stops at each of them.
SLOW: dict[str, Any] = {
    "backoff_first_s": 0.5, "backoff_most_s": 30.0, "api_discovery_interval_s": 60.0, "status_idle_s": 5.0,
}  # fmt: skip


class Cluster:
    """Pods and pools, told to the API server and to the kubelet of node-a alike."""

    def __init__(self, server: ApiServer, kubelet: KubeletServer | None) -> None:
        self.server = server
        self.kubelet = kubelet
        self.pods: dict[str, dict[str, Any]] = {}
        self.pools: dict[str, dict[str, Any]] = {}
        self.watched: Any = None
        self._before: set[str] = set()
        self._seen = 0
        self._hour = 0

    def pod(self, name: str, **fields: Any) -> None:
        """Creates a pod, or changes some fields of one."""
        if name not in self.pods:
            self._hour += 1
            fields.setdefault("created_s", 1_700_000_000 + self._hour)
        known = self.pods.setdefault(name, {}) | fields
        self.pods[name] = known
        rest = {key: value for key, value in known.items() if key != "created_s"}
        created = f"2026-01-01T00:{(known['created_s'] - 1_700_000_000) // 60:02}:{known['created_s'] % 60:02}Z"
        self.server.put(apiserver.pod(name, **rest, created=created))
        if self.kubelet is not None and known.get("node", "node-a") == "node-a":
            labels = {"app": "vllm"} | known.get("labels", {})
            self.kubelet.set_pod(kubelet_server.pod(name, **(known | {"labels": labels})))

    def gone(self, name: str) -> None:
        known = self.pods.pop(name)
        self.server.remove(apiserver.pod(name))
        if self.kubelet is not None and known.get("node", "node-a") == "node-a":
            self.kubelet.remove_pod(f"uid-default-{name}")

    def pool(self, name: str, **fields: Any) -> None:
        self.pools[name] = fields
        self.server.put(apiserver.pool(name, **fields))

    def truth(self) -> set[str]:
        """Addresses that may be picked now, by the rules."""
        found = set()
        for pod in self.pods.values():
            labels = {"app": "vllm"} | pod.get("labels", {})
            if pod.get("node", "node-a") != "node-a" or not pod.get("ready", True) or pod.get("deleting", False):
                continue
            for pool in self.pools.values():
                if all(labels.get(key) == value for key, value in pool.get("labels", {"app": "vllm"}).items()):
                    found |= {f"{pod['ip']}:{port}" for port in pool.get("ports", (8000,))}
        return found

    def _heard(self) -> bool:
        """True once discovery knows every pod of this node as it is now, so that it has had its chance to be wrong."""
        known = {
            (pod.name, pod.ready, pod.terminating, pod.ips)
            for pod in self.watched.discovery.sources.pods()
            if pod.node == "node-a"
        }
        return known == {
            (name, fields.get("ready", True), fields.get("deleting", False), (fields["ip"],))
            for name, fields in self.pods.items()
            if fields.get("node", "node-a") == "node-a"
        }

    async def settles(self, *expected: str) -> None:
        """Waits until what is offered is what the rules say, and checks everything that was offered meanwhile."""
        truth = self.truth()
        assert truth == set(expected)
        await eventually_async(self._heard)
        await self.watched.becomes(*expected)
        allowed = self._before | truth
        for offered in self.watched.sets[self._seen :]:
            wrong = {str(spec.address) for spec in offered.endpoints if not spec.draining} - allowed
            assert not wrong, f"offered {wrong}, which were right neither before nor after"
        self._before, self._seen = truth, len(self.watched.sets)


@pytest.fixture(params=["api", "kubelet"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer())
        kubelet = None
        if request.param == "kubelet":
            kubelet = await stack.enter_async_context(KubeletServer(tmp_path))
        yield Cluster(server, kubelet)


@asynccontextmanager
async def running(cluster: Cluster, watching: Watching, **settings: Any) -> AsyncIterator[None]:
    if cluster.kubelet is not None:
        settings |= {"source": "kubelet", "kubelet_socket": cluster.kubelet.pods_socket}
    async with watching(cluster.server, **settings) as watched:
        cluster.watched = watched
        yield


async def test_the_day(cluster: Cluster, watching: Watching) -> None:
    cluster.pod("a", ip="10.0.0.1")
    cluster.pod("b", ip="10.0.0.2")
    cluster.pod("far", ip="10.9.0.1", node="node-b")
    cluster.pod("other", ip="10.0.0.9", labels={"app": "web"})
    async with running(cluster, watching):
        # No CRD yet (kserve#5750): nothing to serve. It is installed later, and needs no restart.
        await eventually_async(lambda: cluster.server.count("discovery") >= 2)
        assert not cluster.watched.now
        cluster.server.install(POOLS_V1)
        cluster.pool("llama")
        await cluster.settles("10.0.0.1:8000", "10.0.0.2:8000")

        # A rolling update (production-stack#601): the new pod starts, becomes ready, the old one drains and goes.
        cluster.pod("c", ip="10.0.0.3", ready=False)
        await cluster.settles("10.0.0.1:8000", "10.0.0.2:8000")
        cluster.pod("c", ready=True)
        await cluster.settles("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
        cluster.pod("a", deleting=True)
        await cluster.settles("10.0.0.2:8000", "10.0.0.3:8000")
        assert cluster.watched.draining == {"10.0.0.1:8000"}
        cluster.gone("a")
        await cluster.settles("10.0.0.2:8000", "10.0.0.3:8000")
        await eventually_async(lambda: not cluster.watched.draining)

        # An address is another pod's within the second, before the old pod's deletion was heard of.
        old = {spec.key for spec in cluster.watched.sets[-1].endpoints if str(spec.address) == "10.0.0.2:8000"}
        cluster.pod("b", deleting=True)
        cluster.pod("d", ip="10.0.0.2")
        cluster.gone("b")
        await cluster.settles("10.0.0.2:8000", "10.0.0.3:8000")
        await eventually_async(
            lambda: {s.key for s in cluster.watched.sets[-1].endpoints if str(s.address) == "10.0.0.2:8000"}.isdisjoint(
                old
            )
        )

        # Eight ports, then one (GIE#2306): seven endpoints of each pod are gone.
        cluster.pool("llama", ports=tuple(range(8000, 8008)))
        await cluster.settles(*(f"10.0.0.{ip}:{port}" for ip in (2, 3) for port in range(8000, 8008)))
        cluster.pool("llama", ports=(8000,))
        await cluster.settles("10.0.0.2:8000", "10.0.0.3:8000")

        # A second pool takes some of the pods too, then moves to others.
        cluster.pool("web", labels={"app": "web"}, ports=(9000,))
        await cluster.settles("10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.9:9000")
        assert cluster.watched.now["10.0.0.9:9000"] == ("default/web",)
        cluster.pod("other", labels={"app": "vllm"})
        await cluster.settles("10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.9:8000")

        # Scale to zero and back.
        for name in ("c", "d", "other"):
            cluster.pod(name, deleting=True)
        for name in ("c", "d", "other"):
            cluster.gone(name)
        await cluster.settles()
        cluster.pod("e", ip="10.0.0.3", ready=False)
        cluster.pod("e", ready=True)
        await cluster.settles("10.0.0.3:8000")

        # A drain: what ran here is evicted and comes up on another node.
        cluster.pod("e", deleting=True)
        cluster.pod("e2", ip="10.9.0.3", node="node-b")
        await cluster.settles()
        cluster.gone("e")
        await cluster.settles()
        cluster.pod("f", ip="10.0.0.4")
        await cluster.settles("10.0.0.4:8000")


async def test_ten_minutes_without_an_api_server(tmp_path: Path, watching: Watching) -> None:
    clock = ManualClock()
    async with ApiServer() as server:
        server.install(POOLS_V1)
        server.put(apiserver.pool("llama"))
        server.put(apiserver.pod("a", ip="10.0.0.1"))
        async with watching(server, clock=clock, **SLOW) as watched:

            async def offered() -> bool:
                await clock.advance(0.05)
                return set(watched.now) == {"10.0.0.1:8000"}

            await eventually_async(offered)
            await server.stop()
            said = len(watched.sets)

            async def waits() -> bool:
                return clock.sleepers >= 4

            for _ in range(120):
                await clock.advance(5.0)
                for _ in range(3):
                    await asyncio.sleep(0)
            await eventually_async(waits)
            assert len(watched.sets) == said
            assert set(watched.now) == {"10.0.0.1:8000"}
            states = watched.discovery.sources.states()
            assert states["pods"].age_s is not None
            assert states["pods"].age_s >= 590
            assert states["pods"].trouble is not None
            server.put(apiserver.pod("b", ip="10.0.0.2"))
            await server.start()

            async def back() -> bool:
                await clock.advance(1.0)
                return set(watched.now) == {"10.0.0.1:8000", "10.0.0.2:8000"}

            await eventually_async(back)
            age_s = watched.discovery.sources.states()["pods"].age_s
            assert age_s is not None
            assert age_s < 60


async def test_a_removed_crd_and_a_restarting_server_are_told_apart(watching: Watching) -> None:
    async with ApiServer() as server:
        server.install(POOLS_V1)
        server.put(apiserver.pool("llama"))
        server.put(apiserver.pod("a", ip="10.0.0.1"))
        async with watching(server, api_discovery_interval_s=0.2) as watched:
            await watched.becomes("10.0.0.1:8000")
            pool = server.get(POOLS_V1, "llama")
            server.uninstall(POOLS_V1)
            server.install(POOLS_V1)
            server.put(pool)
            server.put(apiserver.pod("b", ip="10.0.0.2"))
            await watched.becomes("10.0.0.1:8000", "10.0.0.2:8000")
            assert all(offered.endpoints for offered in watched.sets)
            server.uninstall(POOLS_V1)
            await watched.becomes()

"""Several pools of one cluster behind one picker: a stream names its pool by port or by metadata."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.apiserver import ApiServer, pod, pool
from support.picker_client import health, picked
from support.ports import free_port
from support.processes import Processes
from support.waiting import eventually
from zerohop_agent.discovery.resources import POOLS_V1

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]
HOSTS = ("127.0.1.1", "127.0.1.2", "127.0.1.3")
NOT_FOUND = -1


async def test_each_stream_gets_its_own_pool(run: Processes, tmp_path: Path) -> None:
    model, first, second, shared, probes = (free_port(*HOSTS) for _ in range(5))
    async with ApiServer() as server:
        server.install(POOLS_V1)
        for name in ("one", "two", "empty"):
            server.put(pool(name, ports=(model,), labels={"pool": name}))
        server.put(pod("a", ip=HOSTS[0], labels={"pool": "one"}))
        server.put(pod("b", ip=HOSTS[1], labels={"pool": "two"}))
        config = server.kubeconfig(tmp_path)

        def start() -> None:
            for host in HOSTS[:2]:
                run.zerohop("mock-server", "--listen", f"{host}:{model}")
            shm = tmp_path / "shm"
            run.zerohop(
                "agent", "--shm-dir", shm, "--discovery", "api", "--kubeconfig", config, "--node-name", "node-a",
                "--metrics-address", "off", "--gpu", "off",
            )  # fmt: skip
            run.zerohop(
                "picker", "--shm-dir", shm, "--pool", f"default/one=127.0.0.1:{first}", "--pool",
                f"default/two=127.0.0.1:{second}", "--listen", f"127.0.0.1:{shared}", "--health-address",
                f"127.0.0.1:{probes}",
            )  # fmt: skip

        await asyncio.to_thread(start)

        def check() -> None:
            eventually(lambda: health(probes, "pool/default/one") == health(probes, "pool/default/two") == 1, 20)
            for _ in range(5):
                assert picked(first) == f"{HOSTS[0]}:{model}"
                assert picked(second) == f"{HOSTS[1]}:{model}"
                assert picked(shared, metadata=[("x-zerohop-pool", "default/one")]) == f"{HOSTS[0]}:{model}"
                assert picked(shared, metadata=[("x-zerohop-pool", "default/two")]) == f"{HOSTS[1]}:{model}"
            assert "503" in picked(shared, metadata=[("x-zerohop-pool", "default/empty")])
            # Any endpoint might be of the wrong pool.
            assert "503" in picked(shared)
            assert health(probes, "pool/default/one") == 1
            assert health(probes, "pool/default/nowhere") != 1

        await asyncio.to_thread(check)
        # One pool loses its last endpoint: its health and its streams say so, the other's go on.
        server.put(pod("b", ip=HOSTS[1], labels={"pool": "two"}, ready=False))

        def after() -> None:
            eventually(lambda: health(probes, "pool/default/two") == 2, 20)
            assert health(probes, "pool/default/one") == 1
            assert health(probes, "readiness") == 1
            assert "503" in picked(second)
            assert picked(first) == f"{HOSTS[0]}:{model}"

        await asyncio.to_thread(after)

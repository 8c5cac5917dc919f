"""One way from client to model server, as processes: Envoy alone, or Envoy and a picker."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

from bench import generator, machine
from zerohop_console.demo.box import Box, Server
from zerohop_console.demo.watch import NodeWatch
from zerohop_process.address import Address

BODY_MODE = "FULL_DUPLEX_STREAMED"


@contextlib.asynccontextmanager
async def box(*picker_flags: str, backends: int = 2, workers: int = 1) -> AsyncIterator[Box]:
    """Backends, agent, picker and Envoy; ready when the picker would pick each backend."""
    async with Box() as made:
        await start_backends(made, backends)
        await made.start_path(workers=workers, body_mode=BODY_MODE, picker_flags=picker_flags)
        await usable(NodeWatch(made.shm_dir), backends)
        yield made


async def usable(watch: NodeWatch, count: int) -> None:
    """Wait until a picker would use that many endpoints. Raises: TimeoutError."""
    async with asyncio.timeout(30):
        while True:
            if sum(seen.usable for seen in watch.endpoints().values()) >= count:
                return
            await asyncio.sleep(0.02)


async def start_backends(made: Box, count: int) -> None:
    """One process that listens on `count` ports."""
    child = await made.children.start("backend", [sys.executable, "-m", "bench.backend", str(count)])
    await child.ready()
    ports = [int(line.split()[1]) for line in child.lines if line.startswith("serving ")]
    made.servers += [Server(f"backend-{index}", Address("127.0.0.1", port), child) for index, port in enumerate(ports)]


async def measure(port: int, pids: dict[str, int], connections: int, duration_s: float) -> dict[str, Any]:
    """Load one port, and what it cost: CPU microseconds per request of each process in the way."""
    await asyncio.to_thread(generator.run, port, connections, 1.0)
    before = {name: machine.cpu_s([pid]) for name, pid in pids.items()}
    load = await asyncio.to_thread(generator.run, port, connections, duration_s)
    cpu = {name: (machine.cpu_s([pid]) - before[name]) / load.requests * 1e6 for name, pid in pids.items()}
    return {
        "c": connections,
        "p50_ms": round(load.p50_ms, 3),
        "p99_ms": round(load.p99_ms, 3),
        "rate": round(load.rate),
        "errors": load.errors,
        **{f"{name}_cpu_us": round(value, 1) for name, value in cpu.items()},
        "cpu_us": round(sum(cpu.values()), 1),
    }


def middle(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure over rounds; errors are summed, so that none is lost."""
    row = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    return {**row, "errors": sum(one["errors"] for one in rounds), "c": rounds[0]["c"]}

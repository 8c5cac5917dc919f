"""An agent that reads 8 model servers (50 kB pages) every 50 ms, 100 every 250 ms, and 8 that write their own cells:
share of a core, age of the load values, and memory."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from bench import machine
from bench.path import start_backends, usable
from zerohop_console.demo.box import Box
from zerohop_console.demo.watch import NodeWatch

#: A decode step of a small model on a large board.
_STEP_MS = 5


def run(duration_s: float = 6.0) -> list[dict[str, Any]]:
    """One row per case."""
    return [
        asyncio.run(_case(8, "50ms", duration_s)),
        asyncio.run(_case(100, "250ms", duration_s)),
        asyncio.run(_case(8, "50ms", duration_s, step_ms=_STEP_MS)),
    ]


async def _case(endpoints: int, interval: str, duration_s: float, step_ms: int = 0) -> dict[str, Any]:
    """`step_ms` > 0: each server has an engine with the plugin that takes a step so often."""
    async with Box() as made:
        await start_backends(made, endpoints)
        made.write_endpoints()
        agent = await made.start_agent("--scrape-interval", interval)
        await agent.ready()
        watch = NodeWatch(made.shm_dir)
        await usable(watch, endpoints)
        if step_ms:
            await _start_engines(made, step_ms)
        await asyncio.sleep(2.0)
        before = machine.cpu_s([agent.pid])
        ages: list[float] = []
        for _ in range(round(duration_s / 0.01)):
            ages += watch.ages_ms().values()
            await asyncio.sleep(0.01)
        used = machine.cpu_s([agent.pid]) - before
        ages.sort()
        return {
            "values": f"plugin, steps of {step_ms} ms" if step_ms else "scrape",
            "endpoints": endpoints,
            "interval": interval,
            "cpu_of_a_core": f"{used / duration_s:.1%}",
            "cpu_per_scrape_us": "-" if step_ms else round(used / duration_s / endpoints * _seconds(interval) * 1e6),
            "age_p50_ms": round(ages[len(ages) // 2], 1),
            "age_p99_ms": round(ages[len(ages) * 99 // 100], 1),
            "resident_mb": round(sum(machine.resident_bytes(agent.pid)) / 1e6, 1),
        }


async def _start_engines(made: Box, step_ms: int) -> None:
    addresses = [str(server.address) for server in made.servers]
    command = [sys.executable, "-m", "bench.cells", str(step_ms), *addresses]
    await made.children.start("engines", command, {"ZEROHOP_SHM_DIR": str(made.shm_dir)})


def _seconds(interval: str) -> float:
    return int(interval.removesuffix("ms")) / 1e3

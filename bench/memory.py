"""Resident memory of each process after a short load."""

from __future__ import annotations

import asyncio
from typing import Any

from bench import generator, machine
from bench.path import box


def run() -> list[dict[str, Any]]:
    """One row per process."""
    return asyncio.run(_run())


async def _run() -> list[dict[str, Any]]:
    rows = []
    for front in ("native", "grpcio"):
        async with box("--front", front, workers=2) as made:
            await asyncio.to_thread(generator.run, made.picked_port, 16, 2.0)
            if made.agent is None or made.picker is None:
                raise RuntimeError("the box has not started")
            if front == "native":
                rows.append(
                    {"process": "agent", "resident_mb": round(machine.resident_bytes(made.agent.pid)[0] / 1e6, 1)}
                )
            supervisor, *workers = machine.resident_bytes(made.picker.pid)
            rows.append({"process": f"picker supervisor ({front})", "resident_mb": round(supervisor / 1e6, 1)})
            rows += [
                {"process": f"picker worker ({front})", "resident_mb": round(worker / 1e6, 1)} for worker in workers
            ]
    return rows

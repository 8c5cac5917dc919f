"""Both fronts behind a real Envoy with one worker thread, against that Envoy alone, at 1, 16 and 64 connections."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.path import box, measure

CONNECTIONS = (1, 16, 64)


def run(duration_s: float = 4.0) -> list[dict[str, Any]]:
    """One row per way and number of connections."""
    return asyncio.run(_run(duration_s))


async def _run(duration_s: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for front in ("native", "grpcio"):
        async with box("--front", front) as made:
            if made.envoy is None or made.picker is None:
                raise RuntimeError("the box has not started")
            for connections in CONNECTIONS:
                if front == "native":
                    alone = await measure(made.round_robin_port, {"envoy": made.envoy.pid}, connections, duration_s)
                    rows.append({"way": "envoy alone", **alone})
                pids = {"envoy": made.envoy.pid, "picker": made.picker.pid}
                rows.append(
                    {"way": f"envoy + {front}", **await measure(made.picked_port, pids, connections, duration_s)}
                )
    return sorted(rows, key=lambda row: (row["way"] != "envoy alone", row["way"] == "envoy + grpcio", row["c"]))


def ratios(rows: list[dict[str, Any]]) -> list[str]:
    """What is promised, as ratios of this run."""
    at = {(row["way"], row["c"]): row for row in rows}
    native, grpcio, alone = (at[way, 64] for way in ("envoy + native", "envoy + grpcio", "envoy alone"))
    picker = native["picker_cpu_us"] / grpcio["picker_cpu_us"]
    return [
        f"c=64: native / grpcio throughput {native['rate'] / grpcio['rate']:.2f} (wanted: 3 or more)",
        f"c=64: native / grpcio picker CPU per request {picker:.2f} (wanted: 0.25 or less)",
        f"c=64: native / grpcio CPU per request of the whole path {native['cpu_us'] / grpcio['cpu_us']:.2f}",
        f"c=64: with native / Envoy alone, throughput {native['rate'] / alone['rate']:.2f}",
        *(
            f"c={c}: a pick adds {at['envoy + native', c]['p50_ms'] - at['envoy alone', c]['p50_ms']:.3f} ms (native), "
            f"{at['envoy + grpcio', c]['p50_ms'] - at['envoy alone', c]['p50_ms']:.3f} ms (grpcio) to the median"
            for c in CONNECTIONS
        ),
    ]

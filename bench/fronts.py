"""Both fronts behind a real Envoy with one worker thread, against that Envoy alone, at 1, 16 and 64 connections."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.path import box, measure, middle

CONNECTIONS = (1, 16, 64)


ROUNDS = 3


def run(duration_s: float = 2.0) -> list[dict[str, Any]]:
    """One row per way and number of connections: medians of rounds in which the ways take turns.

    Taking turns keeps the ratios right on a machine that others use as well.
    """
    return asyncio.run(_run(duration_s))


async def _run(duration_s: float) -> list[dict[str, Any]]:
    async with box("--front", "native") as native, box("--front", "grpcio") as grpcio:
        ways: dict[str, tuple[int, dict[str, int]]] = {}
        for name, made in (("native", native), ("grpcio", grpcio)):
            if made.envoy is None or made.picker is None:
                raise RuntimeError("the box has not started")
            ways.setdefault("envoy alone", (made.round_robin_port, {"envoy": made.envoy.pid}))
            ways[f"envoy + {name}"] = (made.picked_port, {"envoy": made.envoy.pid, "picker": made.picker.pid})
        rounds: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for connections in CONNECTIONS:
            for _ in range(ROUNDS):
                for way, (port, pids) in ways.items():
                    figures = await measure(port, pids, connections, duration_s)
                    rounds.setdefault((way, connections), []).append(figures)
        return [{"way": way, **middle(rounds[way, connections])} for way in ways for connections in CONNECTIONS]


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

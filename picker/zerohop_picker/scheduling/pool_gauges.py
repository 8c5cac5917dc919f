"""Gauges of the pools as the pickers see them, computed when the metrics page is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from zerohop_picker.metrics import Metrics
from zerohop_picker.state.view import View

_AVERAGES = (
    ("kv_cache_usage", "Mean share of the KV cache in use"),
    ("waiting", "Mean queue"),
    ("running", "Mean batch"),
)


def export_pools(metrics: Metrics, view: Callable[[], View | None]) -> None:
    """Register the gauges; ``view`` gives the newest snapshot. Endpoints without a pool count as the pool ""."""

    def ready() -> Iterator[tuple[tuple[str, ...], float]]:
        seen = view()
        if seen is not None:
            for name, bit in _pools(seen):
                yield (name,), float(len(seen.membership.usable(bit)))

    def average(column: str) -> Callable[[], Iterator[tuple[tuple[str, ...], float]]]:
        def read() -> Iterator[tuple[tuple[str, ...], float]]:
            seen = view()
            if seen is not None:
                for name, bit in _pools(seen):
                    values = seen.raw(column)[seen.membership.usable(bit)]
                    known = values[np.isfinite(values)]
                    if len(known):
                        yield (name,), float(known.mean())

        return read

    metrics.measured("pool_ready_endpoints", "Usable endpoints of a pool.", ("pool",), ready)
    for column, text in _AVERAGES:
        metrics.measured(f"pool_{column}", f"{text} over a pool's usable endpoints.", ("pool",), average(column))


def _pools(view: View) -> list[tuple[str, int | None]]:
    return list(view.names.pool_bits.items()) or [("", None)]

"""Our metrics under the names that the field's dashboards use: `llm_d_epp_*` and the older `inference_*`.

A translation of pages that are rendered anyway, summed over the workers: a request is counted once. What
has no counterpart here (flow control, predicted latency, response sizes) is left out rather than shown as zero.

Source: llm-d-router v0.10 and Gateway API Inference Extension v1.5, their metrics packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from zerohop_picker.metrics import Family, Page

_NEW: Final = "llm_d_epp_"
#: Our name, then the field's names with their label names in our order ("" drops a label).
_NAMES: Final[Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]]] = {
    "scheduler_duration_seconds": (
        (_NEW + "scheduler_e2e_duration_seconds", ()),
        ("inference_extension_scheduler_e2e_duration_seconds", ()),
    ),
    "plugin_duration_seconds": (
        (_NEW + "plugin_duration_seconds", ("extension_point", "plugin_type", "plugin_name")),
        ("inference_extension_plugin_duration_seconds", ("extension_point", "plugin_type", "plugin_name")),
    ),
    "scheduled_requests": (
        (_NEW + "request", ("model_name", "target_model_name", "priority")),
        ("inference_objective_request", ("model_name", "target_model_name", "")),
    ),
    "scheduler_attempts": (
        (_NEW + "scheduler_attempts", ("status",)),
        ("inference_extension_scheduler_attempts", ("status",)),
    ),
    "model_rewrites": (
        (_NEW + "model_rewrite_decisions", ()),
        ("inference_extension_model_rewrite_decisions", ()),
    ),
    "extproc_streams": ((_NEW + "extproc_streams", ()),),
    "pool_kv_cache_usage": (
        (_NEW + "pool_average_kv_cache_utilization", ("name",)),
        ("inference_pool_average_kv_cache_utilization", ("name",)),
    ),
    "pool_waiting": (
        (_NEW + "pool_average_queue_size", ("name",)),
        ("inference_pool_average_queue_size", ("name",)),
    ),
    "pool_running": (
        (_NEW + "pool_average_running_requests", ("name",)),
        ("inference_pool_average_running_requests", ("name",)),
    ),
    "pool_ready_endpoints": (
        (_NEW + "ready_endpoints", ("name",)),
        ("inference_pool_ready_pods", ("name",)),
    ),
    "prefix_entries": (
        (_NEW + "prefix_indexer_size", ()),
        ("inference_extension_prefix_indexer_size", ()),
    ),
}


class FieldNames:
    """A collector in prometheus_client's sense: the translated families of some workers' pages."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        """Translate ``pages``."""
        self._pages = pages

    def collect(self) -> Iterator[Any]:
        """Yield the families."""
        from prometheus_client import core

        makers = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        merged: dict[str, Family] = {}
        for page in self._pages.values():
            for family in page:
                if family[0] in _NAMES:
                    merged[family[0]] = _with(merged.get(family[0]), family)
        for name, (_, kind, text, _, bounds, samples) in merged.items():
            for theirs, labels in _NAMES[name]:
                made = makers[kind](theirs, text, labels=[label for label in labels if label])
                for values, value in _relabelled(samples, labels, kind):
                    if kind == "histogram":
                        made.add_metric(values, _buckets(bounds, value[0]), value[1])
                    else:
                        made.add_metric(values, value)
                yield made


def _with(sum_so_far: Family | None, family: Family) -> Family:
    """Add a worker's family to the sum. A gauge describes what all workers see alike, so the first one stands."""
    if sum_so_far is None:
        return family
    name, kind, text, labels, bounds, samples = sum_so_far
    if kind == "gauge":
        return sum_so_far
    totals = {tuple(values): value for values, value in samples}
    for values, value in family[5]:
        key = tuple(values)
        totals[key] = _plus(totals[key], value) if key in totals else value
    return name, kind, text, labels, bounds, list(totals.items())


def _relabelled(samples: list[tuple[Any, Any]], labels: tuple[str, ...], kind: str) -> Iterator[tuple[list[str], Any]]:
    totals: dict[tuple[str, ...], Any] = {}
    for values, value in samples:
        key = tuple(v for v, label in zip(values, labels, strict=False) if label)
        totals[key] = _plus(totals[key], value) if key in totals and kind != "gauge" else value
    for key, value in totals.items():
        yield list(key), value


def _plus(one: Any, other: Any) -> Any:
    if isinstance(one, tuple | list):
        return [a + b for a, b in zip(one[0], other[0], strict=True)], one[1] + other[1]
    return one + other


def _buckets(bounds: list[float], counts: list[int]) -> list[tuple[str, float]]:
    running, buckets = 0, []
    for bound, count in zip((*(repr(float(bound)) for bound in bounds), "+Inf"), counts, strict=True):
        running += count
        buckets.append((bound, float(running)))
    return buckets

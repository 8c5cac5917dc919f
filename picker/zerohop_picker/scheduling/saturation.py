"""When a pool is full: detectors return a saturation (1 = full), and say which endpoints are.

The values are the corrected ones: waiting with the picks since, age-checked. An endpoint whose gauges are unknown
counts as full, as in the field. So does one whose gauges are older than ``metricsStalenessThreshold``, but never before
three of its scrape intervals have passed: a slowly read endpoint is not a full one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zerohop_picker.scheduling.plugin import Parameter, PluginType
from zerohop_picker.scheduling.request import Request
from zerohop_picker.state.ages import FRESH_INTERVALS
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.view import Floats, Mask
from zerohop_process.strict import duration, integer, number, one_of, within


@dataclass(frozen=True, slots=True)
class Utilization:
    """Per endpoint max(q / threshold, kv / threshold), averaged; q = waiting + picks since, unknown = 1."""

    queue_depth_threshold: float = 5.0
    kv_cache_util_threshold: float = 0.8
    metrics_staleness_threshold: int = 200_000_000
    headroom: float = 0.0

    def of(self, endpoints: Endpoints) -> Floats:
        """Return each candidate's saturation, 0 and up."""
        queue = endpoints.waiting / self.queue_depth_threshold
        cache = endpoints.kv_cache_usage / self.kv_cache_util_threshold
        saturation: Floats = np.nan_to_num(np.fmax(queue, cache), nan=1.0)
        interval = np.fmax(endpoints.raw("scrape_interval_s"), 0.0)
        bound = np.maximum(interval * FRESH_INTERVALS, self.metrics_staleness_threshold * 1e-9)
        old = np.nan_to_num(endpoints.age_s(), nan=np.inf) > bound
        return np.where(old, np.maximum(saturation, 1.0), saturation)

    def pool(self, endpoints: Endpoints) -> float:
        """Return the saturation of all candidates together; 1 or more is full."""
        return float(self.of(endpoints).mean()) if len(endpoints) else 1.0

    def __call__(self, endpoints: Endpoints, _request: Request) -> Mask:
        """As a filter: keep endpoints below 1 + ``headroom``; all when none is."""
        return _open(self.of(endpoints), 1.0 + self.headroom)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Per endpoint in-flight requests / limit, or tokens / limit, or the larger (hybrid); averaged. Never unknown."""

    mode: str = "requests"
    max_concurrency: int = 100
    max_token_concurrency: int = 1_000_000
    headroom: float = 0.0

    def of(self, endpoints: Endpoints) -> Floats:
        """Return each candidate's saturation, 0 and up."""
        requests = endpoints.active / self.max_concurrency
        if self.mode == "requests":
            return requests
        tokens: Floats = endpoints.queued_tokens / self.max_token_concurrency
        return tokens if self.mode == "tokens" else np.maximum(requests, tokens)

    def pool(self, endpoints: Endpoints) -> float:
        """Return the saturation of all candidates together; 1 or more is full."""
        return float(self.of(endpoints).mean()) if len(endpoints) else 1.0

    def __call__(self, endpoints: Endpoints, _request: Request) -> Mask:
        """As a filter: keep endpoints below 1 + ``headroom``; all when none is."""
        return _open(self.of(endpoints), 1.0 + self.headroom)


def _open(saturation: Floats, limit: float) -> Mask:
    mask: Mask = saturation < limit
    return mask if mask.any() else np.ones(len(mask), dtype=np.bool_)


_HEADROOM = Parameter("headroom", within(number, 0, 100), 0.0, "as a filter: how far above 1 still passes")

TYPES: tuple[PluginType, ...] = (
    PluginType(
        "utilization-detector", "detector", Utilization, reads=("waiting", "kv_cache_usage"),
        parameters=(
            Parameter("queueDepthThreshold", within(number, 0.001, 1e9), 5.0, "waiting requests that count as full"),
            Parameter("kvCacheUtilThreshold", within(number, 0.001, 1.0), 0.8, "KV use that counts as full"),
            Parameter("metricsStalenessThreshold", duration, 200_000_000, "age from which values count as unknown"),
            _HEADROOM,
        ),
    ),
    PluginType(
        "concurrency-detector", "detector", Concurrency,
        parameters=(
            Parameter("mode", one_of("requests", "tokens", "hybrid"), "requests", "what is counted"),
            Parameter("maxConcurrency", within(integer, 1, 10**9), 100, "requests in flight that count as full"),
            Parameter("maxTokenConcurrency", within(integer, 1, 10**12), 1_000_000, "tokens that count as full"),
            _HEADROOM,
        ),
    ),
)  # fmt: skip

"""Filters that keep a request where its prefix is."""

from __future__ import annotations

import math

import numpy as np

from zerohop_picker.scheduling.plugin import Parameter, PluginType, bound
from zerohop_picker.scheduling.request import Request
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.view import Mask
from zerohop_process.strict import number, one_of, within


def prefix_cache_affinity(
    endpoints: Endpoints,
    request: Request,
    *,
    affinity_threshold: float,
    exploration_probability: float,
    max_ttft_penalty_ms: float,
    peak_prefill_throughput: float,
    **_source: object,
) -> Mask:
    """Keep endpoints that have at least ``affinityThreshold`` of the prompt's blocks; all when none does.

    Also all: with ``explorationProbability``; and when the estimated TTFT (prompt tokens on their way in / peak prefill
    throughput) of the best such endpoint exceeds that of the best other one by more than ``maxTTFTPenaltyMs`` (0 =
    never). Never unknown: a prefix that we never sent there is not there as far as we know.
    """
    sticky = request.prefix_ratio(endpoints) >= affinity_threshold
    if not sticky.any() or sticky.all():
        return np.ones(len(endpoints), dtype=np.bool_)
    if exploration_probability and request.random.random() < exploration_probability:
        return np.ones(len(endpoints), dtype=np.bool_)
    if max_ttft_penalty_ms > 0:
        tokens = endpoints.queued_tokens
        penalty_ms = (tokens[sticky].min() - tokens[~sticky].min()) / peak_prefill_throughput * 1000.0
        if penalty_ms > max_ttft_penalty_ms:
            return np.ones(len(endpoints), dtype=np.bool_)
    return sticky


def sticky_prefix(
    endpoints: Endpoints, request: Request, *, affinity_threshold: float, max_extra_requests: float
) -> Mask | None:
    """Keep endpoints that have at least ``affinityThreshold`` of the prompt's blocks; all when none does.

    Also all when the least loaded of them has more than ``maxExtraRequests`` requests (waiting + running + picks since)
    above the least loaded candidate: a warm cache is not worth a long queue. Where no load is known, stay.
    """
    lookup = request.prefix
    if lookup is None:
        return None
    enough = affinity_threshold * lookup.blocks
    if lookup.longest < enough or enough <= 0.0:
        return None
    sticky: Mask = np.zeros(len(endpoints), dtype=np.bool_)
    requests = endpoints.requests
    warm, found = math.inf, False
    for row, depth in lookup.depths.items():
        index = endpoints.find(row) if depth >= enough else -1
        if index >= 0:
            sticky[index] = found = True
            load = requests.item(index)
            if load < warm:  # never so for NaN, which is unknown
                warm = load
    # fmin leaves out what is unknown.
    if not found or (warm < math.inf and warm - float(np.fmin.reduce(requests)) > max_extra_requests):
        return None
    return sticky


TYPES: tuple[PluginType, ...] = (
    PluginType(
        "prefix-cache-affinity-filter", "filter", bound(prefix_cache_affinity), reads=("prefix",),
        parameters=(
            Parameter("affinityThreshold", within(number, 0, 1), 0.80, "share of blocks that makes an endpoint sticky"),
            Parameter("explorationProbability", within(number, 0, 1), 0.0, "chance to ignore stickiness"),
            Parameter("maxTTFTPenaltyMs", within(number, 0, 1e9), 18_000.0, "TTFT that stickiness may cost; 0 = any"),
            Parameter("ttftSource", one_of("prefillThroughput"), "prefillThroughput", "how TTFT is estimated"),
            Parameter("peakPrefillThroughput", within(number, 1, 1e9), 15_928.0, "tokens per second"),
        ),
    ),
    PluginType(
        "sticky-prefix-filter", "filter", bound(sticky_prefix), reads=("prefix", "waiting", "running"),
        parameters=(
            Parameter("affinityThreshold", within(number, 0, 1), 0.80, "share of blocks that makes an endpoint sticky"),
            Parameter("maxExtraRequests", within(number, 0, 1e6), 8.0, "requests that stickiness may cost"),
        ),
    ),
)  # fmt: skip

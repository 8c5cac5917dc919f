"""Filters that keep a request where its state is: its prefix, its adapter, its session."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from zerohop_picker.scheduling.affinity import Affinity
from zerohop_picker.scheduling.filters.compare import or_all
from zerohop_picker.scheduling.plugin import Parameter, PluginType, bound
from zerohop_picker.scheduling.request import Request
from zerohop_picker.scheduling.scorers.adapters import is_base_model
from zerohop_picker.scheduling.scorers.session import SESSION_PARAMETERS
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
            load = float(requests[index])
            if load < warm:  # never so for NaN, which is unknown
                warm = load
    # fmin leaves out what is unknown.
    if not found or (warm < math.inf and warm - float(np.fmin.reduce(requests)) > max_extra_requests):
        return None
    return sticky


class LoraAffinity:
    """Keeps a request where its adapter is, or is about to be.

    An engine reports adapters with requests in flight: not those that are loaded but idle, and not the one that a burst
    has just been sent to. So the endpoint that an adapter was last sent to counts as having it for a minute.
    """

    _SCOPE: Final = "adapter"
    _REMEMBERED_NS: Final = 60_000_000_000

    def __init__(self, threshold: float) -> None:
        """Stay with the adapter with probability ``threshold``."""
        self._threshold = threshold

    def __call__(self, endpoints: Endpoints, request: Request) -> Mask:
        """Keep endpoints that have the request's adapter; else those with room for one more; else all.

        With probability 1 - ``threshold`` endpoints with room are kept although others have the adapter, so that a busy
        adapter spreads. Unknown (an endpoint that reports no ``lora_max``): no room. A base model: all.
        """
        if request.model is None or is_base_model(endpoints, request.model):
            return np.ones(len(endpoints), dtype=np.bool_)
        found = endpoints.adapter(request.model)
        has = np.zeros(len(endpoints), dtype=np.bool_) if found is None else found[0] | found[1]
        if request.sessions is not None:
            row = request.sessions.row(self._SCOPE, request.model, request.view, request.now_ns)
            has |= endpoints.rows == (-1 if row is None else row)
        most, count = endpoints.column("lora_max"), np.nan_to_num(endpoints.column("lora_count"), nan=0.0)
        room = ~has & np.isfinite(most) & (count < np.nan_to_num(most, nan=0.0))
        if has.any() and not (room.any() and request.random.random() >= self._threshold):
            return has
        return or_all(room, True)

    def picked(self, request: Request, endpoints: Endpoints, row: int) -> None:
        """Remember where the adapter went."""
        if request.sessions is None or request.model is None or is_base_model(endpoints, request.model):
            return
        generation = int(endpoints.view.membership.generations[row])
        expires = request.now_ns + self._REMEMBERED_NS
        request.sessions.bind(self._SCOPE, request.model, row, generation, expires)


class SessionFilter(Affinity):
    """Keeps the session's endpoint."""

    def __call__(self, endpoints: Endpoints, request: Request) -> Mask:
        """Keep the session's endpoint alone; all when the request has no session or its endpoint is no candidate."""
        row = self.row(request)
        if row is None:
            return np.ones(len(endpoints), dtype=np.bool_)
        return or_all(endpoints.rows == row, True)


TYPES = (
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
    PluginType(
        "lora-affinity-filter", "filter", LoraAffinity, reads=("lora_max", "lora_count"), lasting=True,
        parameters=(Parameter("threshold", within(number, 0, 1), 0.999, "probability of staying with the adapter"),),
    ),
    PluginType(
        "session-affinity-filter", "filter", SessionFilter, parameters=SESSION_PARAMETERS, reads=("sessions",)
    ),
)  # fmt: skip

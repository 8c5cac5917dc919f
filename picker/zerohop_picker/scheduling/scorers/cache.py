"""Scorers by cache: how full the KV cache is, and which endpoint has this prompt's prefix in it."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from zerohop_picker.scheduling.plugin import Parameter, PluginType, bound
from zerohop_picker.scheduling.request import BYTES_PER_TOKEN, Request
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.view import Floats
from zerohop_process.strict import boolean, integer, number, text, within


def kv_cache_utilization(endpoints: Endpoints, _request: Request) -> Floats:
    """Return 1 - KV use (clamped to 0..1). All equal: all the same value. Unknown where ``kv_cache_usage`` is."""
    return endpoints.remember("free KV", _free)


def _free(endpoints: Endpoints) -> Floats:
    return 1.0 - endpoints.kv_cache_usage.clip(0.0, 1.0)


def prefix_cache(
    endpoints: Endpoints,
    request: Request,
    *,
    match_length_weight: float,
    match_length_scale_tokens: int,
    **_producer: object,
) -> Floats:
    """Return w * min(1, matched tokens / scale)^2 + (1 - w) * matched blocks / blocks, w = ``matchLengthWeight``.

    All equal: all the same value; 0 for all when the prompt has no full block. Never unknown: an endpoint that we never
    sent this prefix to has none of it as far as we know.
    """
    ratio = request.prefix_ratio(endpoints)
    lookup = request.prefix
    if match_length_weight == 0 or lookup is None:
        return ratio
    tokens = request.matched_blocks(endpoints) * (lookup.block_bytes / BYTES_PER_TOKEN)
    length = np.minimum(1.0, tokens / match_length_scale_tokens)
    return match_length_weight * length * length + (1.0 - match_length_weight) * ratio


class NoHitLru:
    """Spreads requests whose prefix no candidate has: the endpoint that longest got no such request scores highest."""

    def __init__(self, lru_size: int, prefix_match_info_producer_name: str = "") -> None:  # noqa: ARG002
        """Remember the last ``lru_size`` endpoints that got a cold request."""
        self._size = lru_size
        #: Row and generation of cold picks, oldest first.
        self._order: OrderedDict[tuple[int, int], None] = OrderedDict()

    def __call__(self, endpoints: Endpoints, request: Request) -> Floats:
        """Return 0.5 for all when any candidate has a prefix hit; else 1 - rank / (n - 1), never-used ones first.

        A rank is the number of candidates used less recently, so all never-used ones share rank 0. One candidate: 1.
        All equal (all never used): 1. Never unknown.
        """
        count = len(endpoints)
        if count and request.prefix_ratio(endpoints).max() > 0.0:
            return np.full(count, 0.5)
        if count <= 1:
            return np.ones(count)
        generations = endpoints.raw("generation").tolist()
        place = {key: index for index, key in enumerate(self._order, 1)}
        last_use = [place.get(key, 0) for key in zip(endpoints.rows.tolist(), generations, strict=True)]
        # Endpoints that never got one share rank 0; a later one's rank is the number of endpoints used before it.
        ordered = np.sort(np.array(last_use))
        rank = np.searchsorted(ordered, np.array(last_use), side="left")
        return 1.0 - rank / (count - 1)

    def picked(self, request: Request, endpoints: Endpoints, row: int) -> None:
        """Note that a cold request went to ``row``."""
        if request.prefix_ratio(endpoints).max(initial=0.0) > 0.0:
            return
        key = (row, int(endpoints.view.raw("generation")[row]))
        self._order[key] = None
        self._order.move_to_end(key)
        while len(self._order) > self._size:
            self._order.popitem(last=False)


#: In the older configurations the scorer carries the producer's own parameters.
PREFIX_PARAMETERS = (
    Parameter("autoTune", boolean, True, "block size and capacity from what the engines report"),
    Parameter("blockSizeTokens", within(integer, 1, 65_536), 16, "tokens per block when autoTune is off (at least 64)"),
    Parameter("blockSize", within(integer, 1, 65_536), None, "older name of blockSizeTokens; switches autoTune off"),
    Parameter("hashBlockSize", within(integer, 1, 262_144), None, "the same in characters, older still"),
    Parameter("maxPrefixBlocksToMatch", within(integer, 1, 1_000_000), 2048, "blocks of a prompt that are looked at"),
    Parameter("maxPrefixTokensToMatch", within(integer, 1, 100_000_000), 131_072, "tokens of a prompt looked at"),
    Parameter("lruCapacityPerServer", within(integer, 1, 100_000_000), 31_250, "blocks an endpoint holds if unknown"),
)

TYPES: tuple[PluginType, ...] = (
    PluginType(
        "kv-cache-utilization-scorer", "scorer", bound(kv_cache_utilization), reads=("kv_cache_usage",)
    ),
    PluginType(
        "kv-cache-scorer", "scorer", bound(kv_cache_utilization), reads=("kv_cache_usage",),
        note="deprecated: use kv-cache-utilization-scorer",
    ),
    PluginType(
        "prefix-cache-scorer", "scorer", bound(prefix_cache), reads=("prefix",),
        parameters=(
            Parameter("matchLengthWeight", within(number, 0, 1), 0.0, "share of the absolute match length"),
            Parameter("matchLengthScaleTokens", within(integer, 1, 2**40), 8192, "match length that counts as full"),
            Parameter("prefixMatchInfoProducerName", text, "", "the producer to read (there is one)"),
            *PREFIX_PARAMETERS,
        ),
    ),
    PluginType(
        "no-hit-lru-scorer", "scorer", NoHitLru, reads=("prefix",),
        parameters=(
            Parameter("lruSize", within(integer, 1, 1_000_000), 1024, "endpoints remembered"),
            Parameter("prefixMatchInfoProducerName", text, "", "the producer to read (there is one)"),
        ),
    ),
)  # fmt: skip

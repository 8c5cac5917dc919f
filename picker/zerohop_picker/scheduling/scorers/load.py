"""Scorers by load: how many requests or tokens are at each endpoint, counting the picks its gauges cannot show yet."""

from __future__ import annotations

import numpy as np

from zerohop_picker.scheduling.plugin import Parameter, PluginType, bound
from zerohop_picker.scheduling.request import Request
from zerohop_picker.scheduling.scorers.normalise import falling
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.view import Floats
from zerohop_process.strict import duration, integer, number, within

#: In `least-loaded-scorer` a full KV cache weighs less than one request, so it only orders equal loads.
_KV_SHARE = 0.9


def queue(endpoints: Endpoints, _request: Request) -> Floats:
    """Return (max - q) / (max - min) over the candidates, q = waiting + picks since.

    All equal: 1. Unknown where ``waiting`` is. One waiting request is worth the whole weight when the rest have none.
    """
    return falling(endpoints.waiting)


def running(endpoints: Endpoints, _request: Request) -> Floats:
    """Return (max - r) / (max - min) over the candidates, r = running + picks since.

    All equal: 1. Unknown where ``running`` is.
    """
    return falling(endpoints.running)


def load_aware(endpoints: Endpoints, _request: Request, *, threshold: int) -> Floats:
    """Return 0.5 for an empty queue, else 0.5 * (1 - min(q, T) / T); q = waiting + picks since, T = ``threshold``.

    Range 0..0.5. All equal: all the same value. Unknown where ``waiting`` is.
    """
    return 0.5 * (1.0 - np.minimum(endpoints.waiting, threshold) / threshold)


def active_request(
    endpoints: Endpoints, _request: Request, *, idle_threshold: int, max_busy_score: float, **_unused: object
) -> Floats:
    """Return 1 for c <= ``idleThreshold``, else (max - c) / max * ``maxBusyScore``; c = requests in flight.

    c is the larger of what this node's workers have in flight and waiting + running + picks since: the first is known
    at once but only where responses are observed. All equal and busy: 0. Never unknown.
    """
    count = endpoints.active
    most = count.max() if len(count) else 0.0
    if most <= idle_threshold:
        return np.ones(len(count))
    return np.where(count <= idle_threshold, 1.0, (most - count) / most * max_busy_score)


def token_load(endpoints: Endpoints, request: Request, *, queue_threshold_tokens: int) -> Floats:
    """Return 1 - min(n, T) / T; n = prompt tokens on their way into the endpoint + this prompt's uncached tokens.

    T = ``queueThresholdTokens``. All equal: all the same value. Never unknown.
    """
    tokens = endpoints.queued_tokens + request.uncached_tokens(endpoints)
    return 1.0 - np.minimum(tokens, queue_threshold_tokens) / queue_threshold_tokens


def least_loaded(endpoints: Endpoints, _request: Request) -> Floats:
    """Return 1 / (1 + load), load = (1 + waiting + picks since) * slowdown - 1 + 0.9 * KV use.

    Orders by waiting + picks, then by KV use: a full cache weighs less than one request. A GPU at half its clock
    counts as if each of its requests were two, the coming one included. All equal: all the same value. Unknown where
    ``waiting`` is; an unknown KV use counts as full, an unknown slowdown as none.
    """
    scores: Floats = endpoints.picks * endpoints.remember("slowdown factor", _factor)
    scores += endpoints.remember("least-loaded, without picks", _without_picks)
    return np.reciprocal(scores, out=scores)


def _factor(endpoints: Endpoints) -> Floats:
    # fmax takes the 1 where the slowdown is NaN.
    return np.fmax(endpoints.slowdown, 1.0)


def _without_picks(endpoints: Endpoints) -> Floats:
    cache = np.fmax(np.fmin(endpoints.kv_cache_usage, 1.0), 0.0)
    return (endpoints.column("waiting") + 1.0) * endpoints.remember("slowdown factor", _factor) + cache * _KV_SHARE


TYPES: tuple[PluginType, ...] = (
    PluginType("queue-scorer", "scorer", bound(queue), reads=("waiting",)),
    PluginType("running-requests-size-scorer", "scorer", bound(running), reads=("running",)),
    PluginType(
        "load-aware-scorer", "scorer", bound(load_aware), reads=("waiting",),
        parameters=(
            Parameter("threshold", within(integer, 1, 1_000_000), 128, "queue length that counts as full"),
        ),
    ),
    PluginType(
        "active-request-scorer", "scorer", bound(active_request),
        parameters=(
            Parameter("idleThreshold", within(integer, 0, 1_000_000), 0, "up to so many requests an endpoint is idle"),
            Parameter("requestTimeout", duration, None, "not used: a count ends with its request"),
            Parameter("maxBusyScore", within(number, 0, 1), 1.0, "the most that a busy endpoint can score"),
        ),
    ),
    PluginType(
        "token-load-scorer", "scorer", bound(token_load), reads=("prefix",),
        parameters=(
            Parameter("queueThresholdTokens", within(integer, 1, 2**40), 4_194_304, "tokens that count as full"),
        ),
    ),
    PluginType("least-loaded-scorer", "scorer", bound(least_loaded), reads=("waiting", "kv_cache_usage")),
)  # fmt: skip

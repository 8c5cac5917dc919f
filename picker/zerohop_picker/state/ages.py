"""How much a value is worth at a given age: all of it while fresh, less while it ages, and then it is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from zerohop_picker.state.view import Column, Floats

#: A value is taken as it is up to this many scrape intervals (at least FRESH_MIN_S), and is unknown after
#: EXPIRE_INTERVALS (at least EXPIRE_MIN_S); in between it fades towards the mean of the fresh ones.
FRESH_INTERVALS: Final = 3.0
FRESH_MIN_S: Final = 0.2
FRESH_MIN_NS: Final = 200_000_000
EXPIRE_INTERVALS: Final = 10.0
EXPIRE_MIN_S: Final = 2.0

#: The columns that age, each with the time column that dates it. The others are facts of the endpoint, or are latched
#: by the agent, which marks the endpoint as stale in time.
DATED_BY: Final[Mapping[str, str]] = {
    **dict.fromkeys(("waiting", "running", "kv_cache_usage"), "observed_ns"),
    **dict.fromkeys(
        ("lora_count", "prompt_tokens_rate", "generation_tokens_rate", "ttft_mean_s", "itl_mean_s"),
        "detail_observed_ns",
    ),
}


def trust(observed_ns: Column, interval_s: Column, now_ns: int) -> Floats | None:
    """Return 1 for a fresh value, 0 for one that counts as unknown, a straight line in between; None: all are fresh.

    ``observed_ns`` 0 means never, which is unknown. An unknown interval counts as the least one.
    """
    if not len(observed_ns) or now_ns - int(observed_ns.min()) <= FRESH_MIN_NS:
        return None
    interval = np.fmax(interval_s, 0.0).astype(np.float64)
    fresh = np.maximum(interval * FRESH_INTERVALS, FRESH_MIN_S)
    expire = np.maximum(interval * EXPIRE_INTERVALS, EXPIRE_MIN_S)
    age = (now_ns - observed_ns.astype(np.float64)) * 1e-9
    share = np.clip((expire - age) / (expire - fresh), 0.0, 1.0)
    share[observed_ns == 0] = 0.0
    return None if share.min() >= 1.0 else share


def faded(values: Floats, share: Floats | None) -> Floats:
    """Return ``values`` as far as they can be trusted: mixed with the mean of the fresh ones, NaN where not at all."""
    if share is None:
        return values
    fresh = values[(share >= 1.0) & np.isfinite(values)]
    if len(fresh):
        values = share * values + (1.0 - share) * fresh.mean()
    return np.where(share > 0.0, values, np.nan)

"""From a load to a score: the two normalisations that most scorers share. NaN stays NaN and is never compared."""

from __future__ import annotations

import numpy as np

from zerohop_picker.state.view import Floats


def falling(values: Floats) -> Floats:
    """Return (max - v) / (max - min): the least gets 1, the most 0; 1 for all when all known ones are equal."""
    if not len(values):
        return np.zeros(0)
    low, high = values.min(), values.max()
    if low != low:  # some are unknown: min() of an array with a NaN is NaN
        known = values[np.isfinite(values)]
        if not len(known):
            return np.full(len(values), np.nan)
        low, high = known.min(), known.max()
    if high <= low:
        return np.where(np.isnan(values), np.nan, 1.0)
    scores: Floats = (high - values) * (1.0 / (high - low))
    # A range so small that its reciprocal overflows would make 0 x inf.
    return scores if np.isfinite(1.0 / (high - low)) else np.where(np.isnan(values), np.nan, (values == low) * 1.0)


def rising(values: Floats) -> Floats:
    """Return (v - min) / (max - min): the most gets 1, the least 0; 1 for all when all known ones are equal."""
    return falling(-values)


def clamped(values: Floats) -> Floats:
    """Return ``values`` limited to [0, 1]; NaN stays."""
    limited: Floats = np.minimum(np.maximum(values, 0.0), 1.0)
    return limited

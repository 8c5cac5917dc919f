"""From a load to a score: the two normalisations that most scorers share. NaN stays NaN and is never compared."""

from __future__ import annotations

import math

import numpy as np

from zerohop_picker.state.view import Floats


def falling(values: Floats) -> Floats:
    """Return (max - v) / (max - min): the least gets 1, the most 0; 1 for all when all known ones are equal."""
    if not len(values):
        return np.zeros(0)
    # The reductions of fmin and fmax leave out what is unknown, in half the time of min() and max().
    low, high = float(np.fmin.reduce(values)), float(np.fmax.reduce(values))
    if high <= low:
        return np.where(np.isnan(values), np.nan, 1.0)
    if low != low:
        return np.full(len(values), np.nan)  # all are unknown
    scale = 1.0 / (high - low)
    if scale == math.inf:  # a range so small that its reciprocal overflows would make 0 x inf
        return np.where(np.isnan(values), np.nan, (values == low) * 1.0)
    scores: Floats = (high - values) * scale
    return scores


def rising(values: Floats) -> Floats:
    """Return (v - min) / (max - min): the most gets 1, the least 0; 1 for all when all known ones are equal."""
    return falling(-values)


def clamped(values: Floats) -> Floats:
    """Return ``values`` limited to [0, 1]; NaN stays."""
    limited: Floats = np.minimum(np.maximum(values, 0.0), 1.0)
    return limited

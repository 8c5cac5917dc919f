"""Comparisons in which an unknown value takes no part: what becomes of it is an argument, never an accident of NaN."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from zerohop_picker.state.view import Floats, Mask

OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "LessThan": operator.lt, "LessThanOrEqual": operator.le, "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge, "Equal": operator.eq, "NotEqual": operator.ne,
}  # fmt: skip


def compare(values: Floats, symbol: str, limit: float, *, unknown: bool) -> Mask:
    """Return ``values OPERATOR limit``, and ``unknown`` where a value is NaN."""
    known = np.isfinite(values)
    result: Mask = np.where(known, OPERATORS[symbol](np.where(known, values, limit), limit), unknown)
    return result


def at_most(values: Floats, limit: float, *, unknown: bool) -> Mask:
    """Return ``values <= limit``, and ``unknown`` where a value is NaN."""
    return compare(values, "LessThanOrEqual", limit, unknown=unknown)


def or_all(mask: Mask, fall_back: bool) -> Mask:
    """Return ``mask``, or everything when it is empty and ``fall_back`` holds."""
    return np.ones(len(mask), dtype=np.bool_) if fall_back and not mask.any() else mask

"""Weighted draws whose proportions are exact over time, not only on average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class WeightedDraw(Generic[T]):
    """Draws the item that is furthest behind its share (largest deficit).

    After any ``total`` draws in a row each item was drawn exactly ``weight`` times, and at no moment is one more than
    one draw away from its share for two items. An item of weight 0 is never drawn.
    """

    __slots__ = ("_deficits", "_items", "_total", "_weights")

    def __init__(self, items: Sequence[T], weights: Sequence[int], start: int = 0) -> None:
        """Draw from ``items``; ``start`` draws are skipped, so that workers need not all begin with the same item.

        Raises: ValueError when no weight is above 0, or one is below.
        """
        if any(weight < 0 for weight in weights) or not any(weights):
            raise ValueError("weights must not be negative, and one at least must be above 0")
        pairs = [(item, weight) for item, weight in zip(items, weights, strict=True) if weight > 0]
        self._items = [item for item, _ in pairs]
        self._weights = [weight for _, weight in pairs]
        self._total = sum(self._weights)
        self._deficits = [0] * len(pairs)
        for _ in range(start % self._total if self._total < 1000 else start % 1000):
            self.draw()

    def draw(self) -> T:
        """Return the next item."""
        deficits = self._deficits
        best = 0
        for index, weight in enumerate(self._weights):
            deficits[index] += weight
            if deficits[index] > deficits[best]:
                best = index
        deficits[best] -= self._total
        return self._items[best]

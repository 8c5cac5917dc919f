"""What counts: additions that cost less than the events they count. `metrics` gives them names and a page."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

LabelValues = tuple[str, ...]

SECONDS_BUCKETS = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def increment(self, amount: float = 1) -> None:
        """Add `amount`."""
        self.value += amount

    def plain(self) -> float:
        """Return the value."""
        return self.value


class Gauge:
    """A number that moves, or a function that says it."""

    __slots__ = ("_read", "value")

    def __init__(self, read: Callable[[], float] | None = None) -> None:
        self.value = 0.0
        self._read = read

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value

    def plain(self) -> float:
        """Return the value now."""
        return self.value if self._read is None else self._read()


class Histogram:
    """Counts of observations per bucket, and their sum."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS_BUCKETS) -> None:
        self._bounds = list(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation; a bucket holds values up to and including its bound."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def plain(self) -> tuple[list[int], float]:
        """Return the counts per bucket (not cumulative, the last is +Inf) and the sum."""
        return self.counts, self.total


Metric = TypeVar("Metric", Counter, Gauge, Histogram)


class Labelled(Generic[Metric]):
    """A family of metrics of one name, told apart by label values. At most `LIMIT` of them: the rest share one."""

    LIMIT: Final = 1_000

    def __init__(self, make: Callable[[], Metric], labels: LabelValues) -> None:
        self._make: Callable[[], Metric] = make
        self._labels = labels
        self._children: dict[LabelValues, Metric] = {}

    def labels(self, *values: str) -> Metric:
        """Return the metric of these label values. Keep it where it is used often."""
        child = self._children.get(values)
        if child is None:
            if len(self._children) >= self.LIMIT:
                values = ("other",) * len(self._labels)
            child = self._children.setdefault(values, self._make())
        return child

    def items(self) -> Iterator[tuple[LabelValues, Metric]]:
        """Yield every metric with its label values."""
        yield from self._children.items()

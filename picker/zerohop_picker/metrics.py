"""Counters and histograms that cost less than the events they count, and their way to Prometheus.

A worker only adds numbers. What it counted leaves it as plain data (a `Page`), which the process that serves
`/metrics` (the worker itself, or the supervisor of several) turns into prometheus_client's families.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

Kind = Literal["counter", "gauge", "histogram"]
LabelValues = tuple[str, ...]
# One family as plain data: name, kind, help, label names, bounds (histograms), and per label values a number or
# (counts per bucket, sum).
Family = tuple[str, Kind, str, LabelValues, list[float], list[tuple[LabelValues, Any]]]
Page = list[Family]
# Families of this name come out without our prefix, as every Prometheus client names them.
PROCESS_PREFIX = "process_"

SECONDS_BUCKETS = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip
LONG_SECONDS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
BYTES_BUCKETS = (256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

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
        self.value: float = 0
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
        self.total: float = 0

    def observe(self, value: float) -> None:
        """Count one observation; a bucket holds values up to and including its bound."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def plain(self) -> tuple[list[int], float]:
        """Return the counts per bucket (not cumulative, the last is +Inf) and the sum."""
        return self.counts, self.total


class _Kept:
    """A value that something else counts."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def plain(self) -> Any:
        return self._value


Metric = TypeVar("Metric", Counter, Gauge, Histogram)


class Labelled(Generic[Metric]):
    """A family of metrics of one name, told apart by label values. At most `LIMIT` of them: the rest share one."""

    LIMIT = 1_000

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


class Metrics:
    """All metrics of one process. Names come out with the prefix `zerohop_picker_`, counters with `_total`."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[Kind, str, LabelValues, Sequence[float], Callable[[], Iterable[Any]]]] = {}

    def counter(self, name: str, help: str) -> Counter:  # noqa: A002
        """Return a new counter; `name` without prefix and suffix."""
        metric = Counter()
        self._add(name, "counter", help, (), (), lambda: (((), metric),))
        return metric

    def counters(self, name: str, help: str, *labels: str) -> Labelled[Counter]:  # noqa: A002
        """Return a new family of counters."""
        family = Labelled(Counter, labels)
        self._add(name, "counter", help, labels, (), family.items)
        return family

    def gauge(self, name: str, help: str, read: Callable[[], float] | None = None) -> Gauge:  # noqa: A002
        """Return a new gauge, set by hand or read by a function when the page is made."""
        metric = Gauge(read)
        self._add(name, "gauge", help, (), (), lambda: (((), metric),))
        return metric

    def gauges(self, name: str, help: str, *labels: str) -> Labelled[Gauge]:  # noqa: A002
        """Return a new family of gauges."""
        family = Labelled(Gauge, labels)
        self._add(name, "gauge", help, labels, (), family.items)
        return family

    def histogram(self, name: str, help: str, bounds: Sequence[float] = SECONDS_BUCKETS) -> Histogram:  # noqa: A002
        """Return a new histogram."""
        metric = Histogram(bounds)
        self._add(name, "histogram", help, (), bounds, lambda: (((), metric),))
        return metric

    def histograms(
        self,
        name: str,
        help: str,  # noqa: A002
        *labels: str,
        bounds: Sequence[float] = SECONDS_BUCKETS,
    ) -> Labelled[Histogram]:
        """Return a new family of histograms."""
        family: Labelled[Histogram] = Labelled(lambda: Histogram(bounds), labels)
        self._add(name, "histogram", help, labels, bounds, family.items)
        return family

    def counted(
        self,
        name: str,
        help: str,  # noqa: A002
        labels: LabelValues,
        read: Callable[[], Iterable[tuple[LabelValues, float]]],
    ) -> None:
        """Export counters that are kept elsewhere: `read` yields label values and numbers when the page is made."""
        self._add(name, "counter", help, labels, (), lambda: ((values, _Kept(value)) for values, value in read()))

    def measured(
        self,
        name: str,
        help: str,  # noqa: A002
        labels: LabelValues,
        read: Callable[[], Iterable[tuple[LabelValues, float]]],
    ) -> None:
        """Export gauges that are kept elsewhere: `read` yields label values and numbers when the page is made."""
        self._add(name, "gauge", help, labels, (), lambda: ((values, _constant(value)) for values, value in read()))

    def page(self) -> Page:
        """Return every family as plain data that JSON can carry."""
        return [
            (name, kind, text, labels, list(bounds), [(values, metric.plain()) for values, metric in items()])
            for name, (kind, text, labels, bounds, items) in self._families.items()
        ]

    def _add(
        self, name: str, kind: Kind, text: str, labels: LabelValues, bounds: Sequence[float],
        items: Callable[[], Iterable[Any]],
    ) -> None:  # fmt: skip
        if name in self._families:
            raise ValueError(f"metric {name} exists already")
        self._families[name] = (kind, text, labels, bounds, items)


def _constant(value: float) -> Gauge:
    gauge = Gauge()
    gauge.set(value)
    return gauge


def render(pages: Mapping[str, Page], *, field_names: bool = False) -> bytes:
    """Return the exposition of `pages`, one per worker, each sample with the label `worker` of its page.

    With `field_names` the families that have a counterpart in the field come under its names, too.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import generate_latest

    registry = CollectorRegistry()
    registry.register(_Pages(pages))
    if field_names:
        from zerohop_picker.field_metrics import FieldNames

        registry.register(FieldNames(pages))
    return generate_latest(registry)


class _Pages:
    """A collector in prometheus_client's sense over plain pages."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Any]:
        """Yield one prometheus_client family per name."""
        families: dict[str, Any] = {}
        for worker, page in self._pages.items():
            for name, kind, text, labels, bounds, samples in page:
                family = families.get(name)
                if family is None:
                    family = families[name] = _family(name, kind, text, tuple(labels))
                for values, value in samples:
                    _add_sample(family, kind, (*values, worker), value, bounds)
        yield from families.values()


def _family(name: str, kind: Kind, text: str, labels: LabelValues) -> Any:
    from prometheus_client import core

    make = {
        "counter": core.CounterMetricFamily,
        "gauge": core.GaugeMetricFamily,
        "histogram": core.HistogramMetricFamily,
    }[kind]
    prefix = "" if name.startswith(PROCESS_PREFIX) else "zerohop_picker_"
    return make(f"{prefix}{name}", text, labels=(*labels, "worker"))


def _add_sample(family: Any, kind: Kind, labels: LabelValues, value: Any, bounds: Sequence[float]) -> None:
    if kind != "histogram":
        family.add_metric(labels, value)
        return
    counts, total = value
    running, buckets = 0, []
    for bound, count in zip((*(repr(float(bound)) for bound in bounds), "+Inf"), counts, strict=True):
        running += count
        buckets.append((bound, running))
    family.add_metric(labels, buckets, total)

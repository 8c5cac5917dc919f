"""The metrics of one process, by name, and their way to Prometheus.

A worker only adds numbers (`counting`). What it counted leaves it as plain data (a `Page`), which the process that
serves `/metrics` (the worker itself, or the supervisor of several) turns into prometheus_client's families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from zerohop_picker.counting import SECONDS_BUCKETS, Counter, Gauge, Histogram, Labelled, LabelValues

Kind = Literal["counter", "gauge", "histogram"]
# One family as plain data: name, kind, help, label names, bounds (histograms), and per label values a number or
# (counts per bucket, sum).
Family = tuple[str, Kind, str, LabelValues, list[float], list[tuple[LabelValues, Any]]]
Page = list[Family]
# Families of this name come out without our prefix, as every Prometheus client names them.
PROCESS_PREFIX = "process_"

LONG_SECONDS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
BYTES_BUCKETS = (256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)


class _Kept:
    """A value that something else counts."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def plain(self) -> Any:
        return self._value


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

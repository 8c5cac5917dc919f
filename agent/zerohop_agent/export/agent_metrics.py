"""What the agent says about itself, as a prometheus_client collector over the live objects."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from zerohop_agent.collectors.base import CollectorStats
from zerohop_agent.endpoints_file import EndpointsFileState
from zerohop_agent.publisher import Publisher
from zerohop_agent.runtime import Runtime


class AgentMetrics(Collector):
    """Reads plain attributes of objects that the event loop owns; called from the exporter's thread.

    Every mapping is copied in one step (`list(d.values())` holds the interpreter lock), so changes do no harm.
    """

    def __init__(
        self,
        runtime: Runtime,
        publisher: Publisher,
        collectors: Callable[[], list[CollectorStats]],
        endpoints_file: EndpointsFileState | None,
    ) -> None:
        self._runtime = runtime
        self._publisher = publisher
        self._collectors = collectors
        self._endpoints_file = endpoints_file
        self._version = _version()

    def collect(self) -> Iterator[Metric]:
        """All families of the agent itself."""
        yield _gauge("build_info", "1; version of the agent and of Python", ("version", "python"),
            [((self._version, platform.python_version()), 1)])  # fmt: skip
        yield from self._of_collectors()
        yield from self._of_scrapes()
        yield from self._of_publisher()
        yield from self._of_sources()

    def _of_collectors(self) -> Iterator[Metric]:
        stats = [one for one in self._collectors() if one.success is not None]
        label = ("collector",)
        yield _gauge("collector_duration_seconds", "Time that the last update took", label,
            [((one.name,), one.duration_s) for one in stats])  # fmt: skip
        yield _gauge("collector_success", "1 when the last update did not fail", label,
            [((one.name,), int(bool(one.success))) for one in stats])  # fmt: skip
        yield _gauge("collector_has_data", "1 when the last update found something to read", label,
            [((one.name,), int(one.has_data and bool(one.success))) for one in stats])  # fmt: skip
        yield _counter(
            "collector_failures", "Updates that failed", label, [((one.name,), one.failures) for one in stats]
        )

    def _of_scrapes(self) -> Iterator[Metric]:
        now_ns = time.monotonic_ns()
        rows = list(self._runtime.rows.values())
        label = ("endpoint",)
        named = [((str(row.spec.address),), row) for row in rows]
        yield _gauge("scrape_duration_seconds", "Time from request to last byte of the last good reading", label,
            [(key, row.scrape_seconds) for key, row in named if row.scrape_seconds == row.scrape_seconds])  # fmt: skip
        yield _gauge("scrape_age_seconds", "Time since the last reading ended, good or bad", label,
            [(key, (now_ns - row.scraped_ns) / 1e9) for key, row in named if row.scraped_ns])  # fmt: skip
        yield _counter("scrapes", "Readings, good and bad", label, [(key, row.scrapes) for key, row in named])
        yield _counter("scrape_errors", "Readings that failed, by reason", ("endpoint", "reason"),
            [((address, reason.name.lower()), count)
             for (address, reason), count in self._runtime.failure_counts().items()])  # fmt: skip
        yield _counter("counter_resets", "Times that the counters of a model server began anew", label,
            [(key, row.scrape.rates.resets) for key, row in named])  # fmt: skip

    def _of_publisher(self) -> Iterator[Metric]:
        publisher = self._publisher
        yield _counter("publishes", "Snapshots published", (), [((), publisher.publishes)])
        yield _counter("publish_failures", "Publishes that failed by a fault of ours", (), [((), publisher.failures)])
        yield _gauge(
            "publish_duration_seconds", "Time that the last publish took", (), [((), publisher.publish_seconds)]
        )
        yield _gauge(
            "publish_interval_seconds", "Shortest time between publishes", (), [((), publisher.interval_ns / 1e9)]
        )
        yield _gauge("loop_lag_seconds", "By how much the last publish came late", (), [((), publisher.lag_seconds)])
        yield _gauge("loop_lag_max_seconds", "By how much the latest publish since the last scrape came late", (),
            [((), publisher.take_lag_max())])  # fmt: skip

    def _of_sources(self) -> Iterator[Metric]:
        runtime = self._runtime
        yield _gauge("endpoints", "Endpoints that have a row", (), [((), len(runtime.rows))])
        yield _gauge("endpoints_refused", "Endpoints without a row because the table is full", (),
            [((), runtime.refused_count)])  # fmt: skip
        yield _counter("adapter_refusals", "Adapter names that found no slot", (), [((), runtime.adapters.refusals)])
        state = self._endpoints_file
        if state is not None:
            yield _gauge("endpoints_file_valid", "0 while the last edit cannot be used", (), [((), int(state.valid))])
            yield _counter("endpoints_file_reads", "Edits taken over", (), [((), state.changes)])
            yield _counter("endpoints_file_refusals", "Edits that could not be used", (), [((), state.refused)])


_Samples = list[tuple[tuple[str, ...], float]]


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: _Samples) -> Metric:
    family = GaugeMetricFamily(f"zerohop_agent_{name}", text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _counter(name: str, text: str, labels: tuple[str, ...], samples: _Samples) -> Metric:
    family = CounterMetricFamily(f"zerohop_agent_{name}", text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _version() -> str:
    try:
        return version("zerohop")
    except PackageNotFoundError:
        return "unknown"

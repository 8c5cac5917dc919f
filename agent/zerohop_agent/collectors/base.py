"""The interface of a collector, and the driver that runs each one apart, times it and records how it went.

A collector reads one thing (the host, the GPUs) and writes it into the private columns of the next snapshot. It may
read `/proc`, `/sys` and its own child process; it starts no shell, needs no root, and never blocks the event loop for
longer than a file in memory takes (microseconds).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from zerohop_process.log import event, get

logger = get("agent.collectors")


class NoData(Exception):
    """There is nothing to read here (no such file, no such device): neither a failure nor a zero."""


class Columns(Protocol):
    """A table of the snapshot: rows by number, columns by name. Unknown is NaN, or 0 for times."""

    def set(self, row: int, name: str, value: float | None) -> None:
        """Write one value (None: unknown); it is seen by readers after the next publish."""

    def get(self, row: int, name: str) -> float:
        """The value last set, NaN or 0 when unknown."""

    def clear(self, row: int) -> None:
        """Make every column of the row unknown."""


class Fields(Protocol):
    """A single record of the snapshot: values by name. Unknown is NaN, or 0 for times."""

    def set(self, name: str, value: float | None) -> None:
        """Write one value (None: unknown); it is seen by readers after the next publish."""

    def get(self, name: str) -> float:
        """The value last set, NaN or 0 when unknown."""


class SnapshotView(Protocol):
    """The part of the next snapshot that a collector may write. All calls are plain stores: no lock, no system call."""

    @property
    def gpus(self) -> Columns:
        """GPU rows, `zerohop_snapshot.layout.GPU_COLUMNS`; row i is entry i of the last `set_gpus`."""

    @property
    def host(self) -> Fields:
        """`zerohop_snapshot.layout.HOST_FIELDS`."""

    def set_gpus(self, gpus: Sequence[Mapping[str, Any]]) -> None:
        """Say which boards there are, row by row: `uuid`, `name`, `index`, `bus_id`, `mig`; goes to the cold map."""

    def set_gpu_conditions(self, conditions: Mapping[str, Any]) -> None:
        """Latch what `condition.assess` found, by UUID, onto the endpoints that use those GPUs; others are healthy."""


class Collector(Protocol):
    """Reads one thing about the node."""

    @property
    def name(self) -> str:
        """One lower-case word: label of its metrics and its name in logs."""

    @property
    def interval_ns(self) -> int:
        """Time from the start of one update to the start of the next."""

    async def update(self, view: SnapshotView) -> None:
        """Read and write once.

        Raises: NoData when there is nothing to read; anything else counts as a failure and is logged once per change.
        """

    async def close(self) -> None:
        """Give back what it holds (a child process, a socket). Called once, after the last update."""


@dataclass(slots=True)
class CollectorStats:
    """How the updates of one collector went. Durations in seconds, moments in CLOCK_MONOTONIC ns (0 = never)."""

    name: str
    duration_s: float = 0.0
    #: None until the first update ends; True also for one that found no data.
    success: bool | None = None
    has_data: bool = False
    updates: int = 0
    failures: int = 0
    last_success_ns: int = 0
    error: str = ""
    #: What went wrong, without the details that may differ from one update to the next.
    state: str = ""


class CollectorDriver:
    """Runs every collector in a task of its own: one that fails or hangs leaves the others as they are."""

    def __init__(
        self,
        collectors: Iterable[Collector],
        view: SnapshotView,
        *,
        deadline_intervals: float = 10.0,
        shortest_deadline_s: float = 5.0,
    ) -> None:
        self.collectors = tuple(collectors)
        self._view = view
        self._deadline_intervals = deadline_intervals
        self._shortest_deadline_s = shortest_deadline_s
        self.stats = {collector.name: CollectorStats(collector.name) for collector in self.collectors}

    async def run(self) -> None:
        """Update until cancelled, then close every collector."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for collector in self.collectors:
                    tasks.create_task(self._follow(collector), name=f"collector-{collector.name}")
        finally:
            for collector in self.collectors:
                await self._close(collector)

    async def update_once(self) -> None:
        """One update of every collector, so that the first snapshot is not empty."""
        await asyncio.gather(*(self._update(collector) for collector in self.collectors))

    async def _follow(self, collector: Collector) -> None:
        due = time.monotonic_ns()
        while True:
            await self._update(collector)
            # A late update is not made up for: the next one is due one interval after now at the earliest.
            due = max(due + collector.interval_ns, time.monotonic_ns())
            await asyncio.sleep((due - time.monotonic_ns()) / 1e9)

    async def _update(self, collector: Collector) -> None:
        stats = self.stats[collector.name]
        deadline_s = max(self._shortest_deadline_s, collector.interval_ns / 1e9 * self._deadline_intervals)
        started_ns = time.monotonic_ns()
        error = ""
        has_data = True
        state = "ok"
        try:
            async with asyncio.timeout(deadline_s):
                await collector.update(self._view)
        except NoData as nothing:
            has_data = False
            error, state = str(nothing), "no data"
        except TimeoutError:
            error, state = f"no answer within {deadline_s:g} s", "timeout"
        except Exception as failure:  # counted, logged once per change; the loop goes on
            state = type(failure).__name__
            error = f"{state}: {failure}" if str(failure) else state
        success = state in ("ok", "no data")
        now_ns = time.monotonic_ns()
        stats.duration_s = (now_ns - started_ns) / 1e9
        stats.updates += 1
        if success:
            stats.last_success_ns = now_ns
        else:
            stats.failures += 1
        if state != stats.state:
            self._log_change(stats, state, error)
        stats.success, stats.has_data, stats.error, stats.state = success, has_data, error, state

    @staticmethod
    def _log_change(stats: CollectorStats, state: str, error: str) -> None:
        if state == "no data":
            event(logger, "info", "collector has no data", collector=stats.name, reason=error)
        elif state != "ok":
            event(logger, "warning", "collector failed", collector=stats.name, error=error)
        elif stats.updates > 1:
            event(logger, "info", "collector works again", collector=stats.name)

    @staticmethod
    async def _close(collector: Collector) -> None:
        try:
            await collector.close()
        except Exception as failure:  # a collector that cannot close must not keep the others open
            event(logger, "warning", "collector did not close", collector=collector.name, error=repr(failure))

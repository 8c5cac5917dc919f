"""One endpoint's row: what its readings say, written into the snapshot's columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter

from zerohop_agent.adapters import AdapterTable, words
from zerohop_agent.endpoints import EndpointSpec
from zerohop_agent.rates import Rates
from zerohop_agent.signals import Signals, SourceError
from zerohop_snapshot.layout import DrainReason, SlowdownReason, UnhealthyReason, ValueSource
from zerohop_snapshot.writer import Table

_NAN = math.nan
_NO_SLOTS: frozenset[int] = frozenset()
#: Counters, rates, latencies and adapters follow at most this often: they steer by seconds, and an engine that writes
#: its own cell has new ones every few milliseconds.
DETAIL_INTERVAL_NS = 90_000_000

#: The load gauges, which come from one reading alone: half of one moment and half of another would be neither.
_LOAD = ("waiting", "running", "kv_cache_usage")
_COUNTERS = ("prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits", "preemptions", "steps")
_RATES = ("prompt_tokens_rate", "generation_tokens_rate", "ttft_mean_s", "itl_mean_s")
#: What hardly changes, so that either source will do.
_GEOMETRY = ("block_size", "max_model_len", "kv_capacity_tokens", "lora_max")
_TIMES = ("observed_ns", "progress_ns", "detail_observed_ns")
_LORA_WORDS = ("lora_running_0", "lora_running_1", "lora_waiting_0", "lora_waiting_1")
_MEASURED = (*_TIMES, *_LORA_WORDS, *_LOAD, *_COUNTERS, *_RATES, *_GEOMETRY, "lora_count")

_load = attrgetter(*_LOAD)
_counters = attrgetter(*_COUNTERS)
_rates = attrgetter(*_RATES)
_facts = attrgetter(*_GEOMETRY, "num_blocks", "models", "adapters")


class EndpointColumns:
    """The endpoint columns as typed views: a store through one costs a third of `Table.set`, and a reading has 30."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.load = [table.column(name) for name in _LOAD]
        self.counters = [table.column(name) for name in _COUNTERS]
        self.rates = [table.column(name) for name in _RATES]
        self.observed_ns = table.column("observed_ns")
        self.flags = table.column("flags")
        self.progress_ns = table.column("progress_ns")
        self.detail_observed_ns = table.column("detail_observed_ns")


class Feed:
    """The readings of one endpoint that came by one way: scraped, or out of its engine's cell."""

    __slots__ = ("detail_ns", "facts", "observed_ns", "rates", "signals", "source")

    def __init__(self, source: ValueSource) -> None:
        self.source = source
        self.signals: Signals | None = None
        self.observed_ns = 0
        self.detail_ns = 0
        self.facts: tuple[object, ...] = ()
        self.rates = Rates()

    def clear(self) -> None:
        """Forget the readings."""
        self.signals = None
        self.observed_ns = self.detail_ns = 0
        self.facts = ()
        self.rates = Rates()


@dataclass(slots=True)
class Condition:
    """What the endpoint's GPUs do to it, worst board first."""

    drain_reason: DrainReason = DrainReason.NONE
    slowdown: float = _NAN
    slowdown_reason: SlowdownReason = SlowdownReason.NONE


@dataclass(slots=True)
class Stuck:
    """Since when the endpoint is stuck, and when it is tried again. Moments in ns, as observed; 0 = none."""

    since_ns: int = 0
    next_trial_ns: int = 0
    trials: int = 0
    trial_ends_ns: int = 0


class EndpointRow:
    """Everything known about one endpoint, and the columns of its row.

    The plain attributes are what `latches.flags` decides from.
    """

    def __init__(self, spec: EndpointSpec, row: int, columns: EndpointColumns, adapters: AdapterTable) -> None:
        self.spec = spec
        self.row = row
        self._columns = columns
        self._adapters = adapters
        self.scrape = Feed(ValueSource.SCRAPE)
        self.plugin = Feed(ValueSource.PLUGIN)
        #: The feed whose load values stand in the row; None before the first reading.
        self.current: Feed | None = None
        self.progress_ns = 0
        #: Since when requests run or wait without a break; 0 while there are none.
        self.busy_since_ns = 0
        self.failures_in_a_row = 0
        self.failure: SourceError | None = None
        #: Interval at which it is scraped now.
        self.interval_ns = 0
        #: True while it is scraped seldom because its engine writes its own cell.
        self.relaxed = False
        #: Moment of the last scrape's end, good or bad, and how long it took.
        self.scraped_ns = 0
        self.scrape_seconds = _NAN
        self.scrapes = 0
        self.scrape_failures: dict[UnhealthyReason, int] = {}
        self.condition = Condition()
        self.stuck = Stuck()
        #: What the server says that it serves, and what its page looks like, for the cold map.
        self.served_models: tuple[str, ...] = ()
        self.served_adapters: tuple[str, ...] = ()
        self.engine: str | None = None
        #: Names in the row's adapter columns; None: those of a previous agent, or nothing yet.
        self._lora: tuple[frozenset[str] | None, frozenset[str] | None] | None = None
        self._running_slots = self._waiting_slots = _NO_SLOTS
        #: Moment of the values that a previous agent left in this row; 0 = none.
        self.inherited_ns = int(columns.observed_ns[row])
        #: Last words written, so that a publish knows what changed.
        self.latched = (-1, -1)

    @property
    def observed_ns(self) -> int:
        """Moment that the load values describe, also those of a previous agent; 0 = never."""
        return self.current.observed_ns if self.current is not None else self.inherited_ns

    @property
    def signals(self) -> Signals | None:
        """The reading that the load values came from."""
        return self.current.signals if self.current is not None else None

    def take(self, feed: Feed, signals: Signals, observed_ns: int) -> bool:
        """Take a reading in and write the row; returns True when the cold map has to change with it.

        A reading older than the one that the feed holds is dropped.
        """
        if observed_ns <= feed.observed_ns:
            return False
        feed.signals, feed.observed_ns = signals, observed_ns
        if self.current is None or observed_ns >= self.current.observed_ns:
            self.current = feed
            self._write_load(signals, observed_ns)
        if observed_ns - feed.detail_ns < DETAIL_INTERVAL_NS and feed.detail_ns:
            return False
        feed.detail_ns = observed_ns
        if feed.rates.update(signals, observed_ns):
            self.progress_ns = max(self.progress_ns, observed_ns)
            self._columns.progress_ns[self.row] = self.progress_ns
        changed = self._take_facts(feed, signals)
        self._write_details()
        return changed

    def scraped(self, now_ns: int, elapsed_ns: int) -> None:
        """A scrape went well."""
        self.scrapes += 1
        self.scraped_ns, self.scrape_seconds = now_ns, elapsed_ns / 1e9
        self.failures_in_a_row = 0
        self.failure = None

    def failed(self, error: SourceError, now_ns: int) -> None:
        """A scrape failed; the values stay, and their age tells."""
        self.scrapes += 1
        self.scraped_ns = now_ns
        self.failures_in_a_row += 1
        self.failure = error
        self.scrape_failures[error.reason] = self.scrape_failures.get(error.reason, 0) + 1

    def forget(self) -> None:
        """Make every measured value unknown: nobody has confirmed them for too long, or another server is there."""
        self.scrape.clear()
        self.plugin.clear()
        self.current = None
        self.progress_ns = self.busy_since_ns = self.inherited_ns = 0
        for name in _MEASURED:
            self._columns.table.set(self.row, name, None)
        self.close()

    def close(self) -> None:
        """Give the adapter slots back; the row is about to be removed or forgotten."""
        self._adapters.release(self._running_slots)
        self._adapters.release(self._waiting_slots)
        self._running_slots = self._waiting_slots = _NO_SLOTS
        self._lora = None

    def geometry(self, name: str) -> float | None:
        """A slowly changing fact, from the newer feed that has it."""
        for feed in self._feeds():
            value = getattr(feed.signals, name)
            if value is not None:
                return float(value)
        return None

    def _feeds(self) -> list[Feed]:
        feeds = [feed for feed in (self.scrape, self.plugin) if feed.signals is not None]
        if len(feeds) == 2 and feeds[1].observed_ns > feeds[0].observed_ns:
            feeds.reverse()
        return feeds

    def _take_facts(self, feed: Feed, signals: Signals) -> bool:
        """Write what hardly changes; returns True when it did."""
        facts = _facts(signals)
        if facts == feed.facts:
            return False
        feed.facts = facts
        if signals.models is not None:
            self.served_models, self.served_adapters = signals.models, signals.adapters or ()
        for name in _GEOMETRY:
            self._columns.table.set(self.row, name, self.geometry(name))
        return True

    def _write_load(self, signals: Signals, observed_ns: int) -> None:
        columns, row = self._columns, self.row
        on_trial = self.stuck.trial_ends_ns
        for column, value in zip(columns.load, _load(signals), strict=True):
            column[row] = _NAN if value is None else 0.0 if on_trial else value
        busy = (signals.running or 0) + (signals.waiting or 0) > 0
        self.busy_since_ns = (self.busy_since_ns or observed_ns) if busy else 0
        columns.observed_ns[row] = observed_ns

    def _write_details(self) -> None:
        columns, row = self._columns, self.row
        feeds = self._feeds()
        newest = feeds[0]
        columns.detail_observed_ns[row] = newest.detail_ns
        for column, value in zip(columns.counters, _counters(newest.signals), strict=True):
            column[row] = _NAN if value is None else value
        for column, value in zip(columns.rates, _rates(newest.rates), strict=True):
            column[row] = _NAN if value is None else value
        running = waiting = None
        for feed in feeds:
            if feed.signals is not None and feed.signals.lora_running is not None:
                running, waiting = feed.signals.lora_running, feed.signals.lora_waiting
                break
        if (running, waiting) != self._lora:
            self._write_adapters(running, waiting)

    def _write_adapters(self, running: frozenset[str] | None, waiting: frozenset[str] | None) -> None:
        # The new ones are taken before the old ones are given back, so that a name which stays keeps its slot.
        taken_running = self._adapters.slots(running or ())
        taken_waiting = self._adapters.slots(waiting or ())
        self._adapters.release(self._running_slots)
        self._adapters.release(self._waiting_slots)
        self._running_slots, self._waiting_slots = taken_running, taken_waiting
        self._lora = (running, waiting)
        values = (*words(taken_running), *words(taken_waiting))
        for name, value in zip(_LORA_WORDS, values, strict=True):
            self._columns.table.set(self.row, name, value)
        # Newer vLLM names one adapter in both lists, so the union counts, not the sum (llm-d-router#2605).
        count = len(running | (waiting or frozenset())) if running is not None else None
        self._columns.table.set(self.row, "lora_count", count)

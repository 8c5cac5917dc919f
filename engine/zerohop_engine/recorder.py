"""Turns the statistics of one engine into its cell, step by step. Knows the names of vLLM's statistics, not vLLM
itself.

What is counted here is what vLLM's own metrics page counts, from the same objects, so that a reader of both sees the
same
totals. A statistic that this vLLM does not have is unknown in the cell.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

__all__ = ["Cell", "EngineRecorder"]

#: counters of the cell, added up over the life of the process
_COUNTERS = (
    "prompt_tokens", "generation_tokens", "preemptions", "steps", "prefix_queries", "prefix_hits",
    "ttft_sum_s", "ttft_count", "itl_sum_s", "itl_count",
)  # fmt: skip


class Cell(Protocol):
    """The part of `zerohop_snapshot.EngineCellWriter` that a recorder uses."""

    def set(self, name: str, value: float | None) -> None:
        """Change one field."""

    def set_text(self, text: Mapping[str, Any]) -> bool:
        """Replace the text."""

    def publish(self, now_ns: int | None = None) -> None:
        """Make the changes visible."""


class EngineRecorder:
    """Writes one engine's cell. `identity` is what never changes (names, addresses); `warn` gets one line per
    defect."""

    def __init__(self, cell: Cell, engine_index: int, identity: Mapping[str, Any], warn: Callable[[str], None]) -> None:
        self._cell = cell
        self._identity = dict(identity)
        self._warn = warn
        self._totals = dict.fromkeys(_COUNTERS, 0.0)
        self._missing: set[str] = set()
        #: when the gauges were last heard of. Another front-end of the same engine may get the scheduler's
        #: statistics of a
        #: step of which this one gets only its own requests; the cell's time must not make old gauges look new.
        self._observed_ns = 0
        self._running: list[str] = []
        self._waiting: list[str] = []
        self._lora_max: float | None = None
        cell.set("engine_index", float(engine_index))
        cell.set_text(self._identity)

    def start(self, geometry: Mapping[str, float | None]) -> None:
        """Say that the engine is ready and idle. `geometry` holds block_size, num_blocks, kv_capacity_tokens and the
        like."""
        cell = self._cell
        self._lora_max = geometry.get("lora_max")
        for name, value in geometry.items():
            cell.set(name, value)
        for name in ("waiting", "running", "kv_cache_usage", "sleep_level", *_COUNTERS):
            cell.set(name, 0.0)
        self._observed_ns = time.monotonic_ns()
        cell.publish(self._observed_ns)

    def record(self, scheduler: Any, iteration: Any) -> None:
        """Take in one engine step: the scheduler's and the iteration's statistics, either of which may be None.

        Raises: AttributeError, TypeError or ValueError where a statistic is not as expected; see `record_tolerantly`.
        """
        # Everything is read before anything is counted: a step that fails half-way is counted by record_tolerantly.
        if scheduler is not None:
            gauges = (
                scheduler.num_running_reqs,
                scheduler.num_waiting_reqs + getattr(scheduler, "num_skipped_waiting_reqs", 0),
                scheduler.kv_cache_usage,
            )
            prefix = scheduler.prefix_cache_stats
            queries, hits = prefix.queries, prefix.hits
            running, waiting = scheduler.running_lora_adapters, scheduler.waiting_lora_adapters
        if iteration is not None:
            generated, prompt = iteration.num_generation_tokens, iteration.num_prompt_tokens
            preempted = iteration.num_preempted_reqs
            first_s, between_s = iteration.time_to_first_tokens_iter, iteration.inter_token_latencies_iter
        put, add = self._cell.set, self._add
        if scheduler is not None:
            self._observed_ns = time.monotonic_ns()
            put("running", gauges[0])
            put("waiting", gauges[1])
            put("kv_cache_usage", gauges[2])
            if queries:
                add("prefix_queries", queries)
                add("prefix_hits", hits)
            if running or waiting or self._running or self._waiting:
                self._record_adapters(running, waiting)
        if iteration is not None:
            add("steps", 1)
            if generated:
                add("generation_tokens", generated)
            if prompt:
                add("prompt_tokens", prompt)
            if preempted:
                add("preemptions", preempted)
            if first_s:
                add("ttft_sum_s", sum(first_s))
                add("ttft_count", len(first_s))
            if between_s:
                add("itl_sum_s", sum(between_s))
                add("itl_count", len(between_s))
        self._cell.publish(self._observed_ns)

    def record_tolerantly(self, scheduler: Any, iteration: Any) -> None:
        """Take in one step of an engine whose statistics have another shape: what is missing is unknown, with one
        warning."""
        known = len(self._missing)
        if scheduler is not None:
            self._observed_ns = time.monotonic_ns()
            self._gauge("running", lambda: scheduler.num_running_reqs)
            self._gauge(
                "waiting", lambda: scheduler.num_waiting_reqs + getattr(scheduler, "num_skipped_waiting_reqs", 0)
            )
            self._gauge("kv_cache_usage", lambda: _first(scheduler, "kv_cache_usage", "gpu_cache_usage"))
            self._counter("prefix_queries", lambda: scheduler.prefix_cache_stats.queries)
            self._counter("prefix_hits", lambda: scheduler.prefix_cache_stats.hits)
        self._adapters_tolerantly(scheduler, iteration)
        if iteration is not None:
            self._counter("steps", lambda: 1)
            self._counter("generation_tokens", lambda: iteration.num_generation_tokens)
            self._counter("prompt_tokens", lambda: iteration.num_prompt_tokens)
            self._counter("preemptions", lambda: iteration.num_preempted_reqs)
            self._counter("ttft_sum_s", lambda: sum(iteration.time_to_first_tokens_iter))
            self._counter("ttft_count", lambda: len(iteration.time_to_first_tokens_iter))
            # The older name until 0.10.2.
            names = ("inter_token_latencies_iter", "time_per_output_tokens_iter")
            self._counter("itl_sum_s", lambda: sum(_first(iteration, *names)))
            self._counter("itl_count", lambda: len(_first(iteration, *names)))
        if len(self._missing) > known:
            self._warn(", ".join(sorted(self._missing)))
        self._cell.publish(self._observed_ns)

    def _adapters_tolerantly(self, scheduler: Any, iteration: Any) -> None:
        """Take the adapters from whichever statistics have them: the iteration's until 0.11, the scheduler's since."""
        for stats in (scheduler, iteration):
            if hasattr(stats, "running_lora_adapters"):
                try:
                    self._record_adapters(stats.running_lora_adapters, stats.waiting_lora_adapters)
                except Exception:
                    self._missing.add("adapters")
                return
        if scheduler is not None and iteration is not None:
            self._missing.add("adapters")

    def sleep(self, level: int) -> None:
        """Say that the engine sleeps at `level`, or is awake (0)."""
        self._cell.set("sleep_level", float(level))
        self._observed_ns = time.monotonic_ns()
        self._cell.publish(self._observed_ns)

    def _add(self, name: str, amount: float) -> None:
        self._totals[name] = total = self._totals[name] + amount
        self._cell.set(name, total)

    def _record_adapters(self, running: Mapping[str, int], waiting: Mapping[str, int]) -> None:
        """Keep the names with a request in that state; vLLM's own page lists a name in both as soon as it has any."""
        now_running = [name for name, count in running.items() if count]
        now_waiting = [name for name, count in waiting.items() if count]
        if now_running != self._running or now_waiting != self._waiting:
            self._running, self._waiting = now_running, now_waiting
            fits = self._cell.set_text({**self._identity, "running": now_running, "waiting": now_waiting})
            if not fits:  # more names than a cell holds: unknown here, and the page says them
                self._cell.set_text(self._identity)
            self._cell.set("lora_max", self._lora_max if fits else None)

    def _gauge(self, name: str, read: Callable[[], Any]) -> None:
        try:
            value = float(read())
        except Exception:
            self._missing.add(name)
            self._cell.set(name, None)
        else:
            self._cell.set(name, value)

    def _counter(self, name: str, read: Callable[[], Any]) -> None:
        try:
            self._totals[name] += float(read())
        except Exception:
            self._missing.add(name)
            self._cell.set(name, None)
        else:
            if name not in self._missing:  # a counter that has missed a step is wrong for ever
                self._cell.set(name, self._totals[name])


def _first(stats: Any, *names: str) -> Any:
    """Return the first of these attributes that there is. Raises: AttributeError."""
    for name in names[:-1]:
        if hasattr(stats, name):
            return getattr(stats, name)
    return getattr(stats, names[-1])

"""What the scheduler counts about itself, for the metrics endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from zerohop_picker.counting import Histogram
from zerohop_picker.metrics import Metrics
from zerohop_picker.scheduling.guard import WATCH
from zerohop_picker.scheduling.pool_gauges import export_pools
from zerohop_picker.state.prefixes import PrefixUse
from zerohop_picker.state.view import View

#: Upper bounds in seconds: the field's own buckets start at 0.1 ms, which is slower than a whole decision here.
BOUNDS_S: Final = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1)

AGE_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0)


class Measures:
    """Counters and histograms of one worker's scheduler."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        """Register with ``metrics``."""
        metrics = metrics or Metrics()
        self.faults = metrics.counter(
            "scheduler_faults", "Decisions that failed by a fault of our own; answered by the fallback."
        )
        self.fallbacks = metrics.counter("scheduler_fallbacks", "Decisions made without plugins.")
        #: By model as asked for, model as forwarded, and priority.
        self.requests = metrics.counters(
            "scheduled_requests", "Requests that got a decision.", "model", "target_model", "priority"
        )
        attempts = metrics.counters("scheduler_attempts", "Decisions asked for, by outcome.", "status")
        self.decided, self.refused = attempts.labels("success"), attempts.labels("failure")
        self.shed = metrics.counter("requests_shed", "Sheddable requests refused because the pool was saturated.")
        self.degraded = metrics.counter(
            "scheduler_degraded", "Decisions among doubtful endpoints: no usable one was left."
        )
        self.reloads = metrics.counters("plugin_file_reloads", "Reloads of changed plugin files, by result.", "result")
        self.durations = metrics.histogram(
            "scheduler_duration_seconds", "Time of one decision, fallbacks included.", BOUNDS_S
        )
        self.value_age = metrics.histogram(
            "value_age_seconds", "Age of the picked endpoint's load gauges at the decision.", AGE_BOUNDS_S
        )
        self._plugins = metrics.histograms(
            "plugin_duration_seconds", "Time of one plugin's run, of one decision in 16.",
            "extension_point", "plugin_type", "plugin_name", bounds=BOUNDS_S,
        )  # fmt: skip
        self._kept: dict[tuple[str, str, str], Histogram] = {}
        metrics.counted(
            "plugin_problems", "Failures of plugins: error, cut_off (over its time), skipped (resting).",
            ("plugin_name", "kind"), _problems,
        )  # fmt: skip
        self._metrics = metrics

    def plugin_duration(self, point: str, plugin_type: str, name: str, seconds: float) -> None:
        """Count one plugin's run."""
        key = (point, plugin_type, name)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = self._plugins.labels(*key)
        found.observe(seconds)

    def watch_pools(self, view: Callable[[], View | None]) -> None:
        """Export what the newest snapshot says of the pools."""
        export_pools(self._metrics, view)

    def watch_prefixes(self, prefixes: PrefixUse) -> None:
        """Export what ``prefixes`` counts."""
        self._metrics.measured(
            "prefix_entries", "Entries of the prefix directory.", (), lambda: (((), float(prefixes.entries())),)
        )
        self._metrics.counted(
            "prefix_lookups", "Prompts looked up in the prefix directory.", (), lambda: (((), prefixes.lookups),)
        )
        self._metrics.counted(
            "prefix_blocks", "Prompt blocks looked up, by whether some endpoint had them.", ("result",),
            lambda: (
                (("hit",), prefixes.blocks_matched), (("miss",), prefixes.blocks_seen - prefixes.blocks_matched),
            ),
        )  # fmt: skip


def _problems() -> Iterator[tuple[tuple[str, str], float]]:
    for health in WATCH.health.values():
        yield (health.name, "error"), health.errors
        yield (health.name, "cut_off"), health.cut_off
        yield (health.name, "skipped"), health.skipped

"""What the scheduler counts about itself; the metrics endpoint reads it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

#: Upper bounds in seconds: the field's own buckets start at 0.1 ms, which is slower than a whole decision here.
BOUNDS_S: Final = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1)


@dataclass(slots=True)
class Durations:
    """A histogram of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds


@dataclass(slots=True)
class Measures:
    """Totals since the worker started. ``plugins`` holds sampled durations by (extension point, type, name)."""

    faults: int = 0
    fallbacks: int = 0
    shed: int = 0
    reloads: int = 0
    reloads_failed: int = 0
    plugins: dict[tuple[str, str, str], Durations] = field(default_factory=dict)

    def plugin_duration(self, point: str, plugin_type: str, name: str, seconds: float) -> None:
        """Count one plugin's run."""
        key = (point, plugin_type, name)
        found = self.plugins.get(key)
        if found is None:
            found = self.plugins[key] = Durations()
        found.observe(seconds)

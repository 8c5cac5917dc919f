"""What is told of each source: how well it is known, and how often each thing happened. For metrics and for tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SourceState:
    """One source: seconds since it was last known to be right (None: never), and its trouble if any."""

    age_s: float | None
    objects: int
    trouble: str | None


@dataclass(slots=True)
class Counters:
    """How often each thing happened to a reflector."""

    lists: int = 0
    streaming_lists: int = 0
    watches: int = 0
    events: int = 0
    failures: int = 0
    expired: int = 0

"""How long to wait between two readings of one endpoint. No clock, no randomness of its own."""

from __future__ import annotations

__all__ = ["Pacing"]

#: a reading that takes more than this share of the interval costs the server too much
_COST_SHARE = 0.25
#: weight of the newest reading; a single slow one moves the interval a little, four in a row almost fully
_SMOOTHING = 0.3
#: Starts are rounded to multiples of this, so that one wake-up of the process reads several servers: at 8 endpoints and
#: 50 ms that saves a third of the agent's CPU. Endpoints take random slots of it, and agents have clocks of their own.
GRID_NS = 25_000_000
#: shorter intervals keep their own time, spread by this share
_JITTER = 0.1
_MAX_DOUBLINGS = 10


class Pacing:
    """Holds the interval of one endpoint: its base, made longer by slow answers, failures and floors."""

    def __init__(self, base_ns: int, max_ns: int, failure_max_ns: int) -> None:
        self._base_ns = base_ns
        self._max_ns = max(base_ns, max_ns)
        self._failure_max_ns = max(base_ns, failure_max_ns)
        self._floor_ns = 0
        self._relaxed_ns = 0
        self._cost_ns = 0.0
        self._failures = 0

    @property
    def interval_ns(self) -> int:
        """The interval in use now."""
        slow = min(int(self._cost_ns / _COST_SHARE), self._max_ns)
        interval = max(self._base_ns, self._floor_ns, self._relaxed_ns, slow)
        if self._failures:
            interval = max(interval, min(self._base_ns << min(self._failures, _MAX_DOUBLINGS), self._failure_max_ns))
        return interval

    def set_floor(self, floor_ns: int) -> None:
        """Never read more often than this from now on (an engine that suffers, a server of several processes)."""
        self._floor_ns = floor_ns

    def relax(self, interval_ns: int) -> None:
        """Read no more often than this for now, because the values come by another way; 0: as ever."""
        self._relaxed_ns = interval_ns

    def succeeded(self, elapsed_ns: int) -> None:
        """Take in how long a reading took."""
        self._cost_ns += _SMOOTHING * (elapsed_ns - self._cost_ns)
        self._failures = 0

    def failed(self) -> None:
        """Take in that a reading failed: each time in a row the wait doubles, up to a bound."""
        self._failures += 1

    def next_start_ns(self, started_ns: int, now_ns: int, random: float) -> int:
        """Return when to read next, after a reading that began at `started_ns`. Monotonic times; `random` is in [0,
        1)."""
        interval = self.interval_ns
        if interval < 2 * GRID_NS:
            return max(now_ns, started_ns + int(interval * (1.0 + _JITTER * (random - 0.5))))
        due_ns = started_ns + interval
        due_ns = (due_ns + GRID_NS // 2) // GRID_NS * GRID_NS
        return due_ns if due_ns > now_ns else (now_ns // GRID_NS + 1) * GRID_NS

    def first_start_ns(self, now_ns: int, random: float) -> int:
        """Return when to read first: at once, or on a random slot of the grid within 50 ms, so that the slots fill
        evenly."""
        if self.interval_ns < 2 * GRID_NS:
            return now_ns + int(self.interval_ns * random)
        return (now_ns // GRID_NS + 1 + int(2 * random)) * GRID_NS

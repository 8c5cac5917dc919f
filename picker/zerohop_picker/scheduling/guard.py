"""Runs users' plugins so that none can harm a decision: errors are counted, and one that takes long is cut off."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import numpy as np

from zerohop_picker.state.endpoints import Endpoints

#: After this many failures in a row a plugin rests for a while instead of costing every request its budget.
STRIKES: Final = 3
REST_NS: Final = 5_000_000_000


class OverBudget(BaseException):
    """Raised inside a user's plugin when its time is up; no Exception: so a broad ``except`` there lets it pass."""


class BadResult(Exception):
    """A plugin returned something else than one value per candidate."""


@dataclass(slots=True)
class Health:
    """How one plugin has fared; read by the metrics and the log."""

    name: str
    errors: int = 0
    cut_off: int = 0
    skipped: int = 0
    last_error: str = ""
    strikes: int = 0
    rest_until_ns: int = 0


@dataclass(slots=True)
class Watch:
    """The state of the timer: only one plugin runs at a time."""

    armed: bool = False
    health: dict[str, Health] = field(default_factory=dict)

    def of(self, name: str) -> Health:
        """Return the record of a plugin."""
        found = self.health.get(name)
        if found is None:
            found = self.health[name] = Health(name)
        return found


WATCH: Final = Watch()


def _alarm(_signal: int, _frame: FrameType | None) -> None:
    # The timer may fire just after the plugin returned; then nothing is interrupted.
    if WATCH.armed:
        raise OverBudget


class TimeLimited:
    """Calls a user's plugin with a time budget and checks what it returns.

    The timer interrupts Python code and blocking calls; a long call into C code that never returns to the interpreter
    cannot be interrupted, it is only counted. Outside the main thread there is no timer, only the count.
    """

    def __init__(self, function: Callable[..., Any], name: str, kind: str, budget_ms: float) -> None:
        """Wrap ``function``."""
        self._function = function
        self._kind = kind
        self._budget_s = budget_ms / 1e3
        self._health = WATCH.of(name)
        self._on_main_thread = threading.current_thread() is threading.main_thread()
        if self._on_main_thread and signal.getsignal(signal.SIGALRM) is not _alarm:
            signal.signal(signal.SIGALRM, _alarm)
        # A plugin that was just reloaded gets a new chance.
        self._health.strikes = 0
        self._health.rest_until_ns = 0

    def __call__(self, endpoints: Endpoints, request: Any) -> Any:
        """Return its scores or mask; an array of NaN (scorer) or True (filter) when it has no say.

        Raises: Exception for whatever the plugin raised; the caller isolates it.
        """
        health = self._health
        if health.rest_until_ns and request.now_ns < health.rest_until_ns:
            health.skipped += 1
            return self._no_say(endpoints)
        started = time.perf_counter()
        try:
            result = self._checked(self._timed(endpoints, request), len(endpoints))
        except OverBudget:
            self._strike(request.now_ns, f"cut off after {self._budget_s * 1e3:g} ms")
            health.cut_off += 1
            return self._no_say(endpoints)
        except Exception:
            self._strike(request.now_ns, "")
            raise
        if time.perf_counter() - started > self._budget_s:
            self._strike(request.now_ns, f"took {(time.perf_counter() - started) * 1e3:.1f} ms")
            health.cut_off += 1
        else:
            health.strikes = 0
        return result

    def _timed(self, endpoints: Endpoints, request: Any) -> Any:
        if not self._on_main_thread:
            return self._function(endpoints, request)
        try:
            WATCH.armed = True
            signal.setitimer(signal.ITIMER_REAL, self._budget_s)
            return self._function(endpoints, request)
        finally:
            WATCH.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _checked(self, result: Any, count: int) -> Any:
        array = np.asarray(result)
        if array.shape != (count,):
            raise BadResult(f"returned shape {array.shape} for {count} endpoints")
        if self._kind == "filter":
            if array.dtype != np.bool_:
                raise BadResult(f"a filter must return booleans, not {array.dtype}")
            return array
        scores = array.astype(np.float64)
        scores[np.isinf(scores)] = np.nan
        return np.clip(scores, 0.0, 1.0)

    def _no_say(self, endpoints: Endpoints) -> Any:
        if self._kind == "filter":
            return np.ones(len(endpoints), dtype=np.bool_)
        return np.full(len(endpoints), np.nan)

    def _strike(self, now_ns: int, what: str) -> None:
        health = self._health
        health.strikes += 1
        health.last_error = what or health.last_error
        if health.strikes >= STRIKES:
            health.rest_until_ns = now_ns + REST_NS
            health.strikes = 0

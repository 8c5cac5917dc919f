"""The candidates of a decision, as the arrays that plugins read.

This is the documented view of the snapshot for plugins, ours and other people's (docs/plugins.md). Every array has one
entry per candidate, in the same order; unknown is NaN; nothing here may be written to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from zerohop_picker.state.ages import DATED_BY, FRESH_MIN_NS, faded, trust
from zerohop_picker.state.loads import Loads
from zerohop_picker.state.membership import without_gaps
from zerohop_picker.state.view import GAUGES, Column, Floats, Mask, Rows, View

_GAUGE_INDEX: Final = {name: index for index, name in enumerate(GAUGES)}
Objects = npt.NDArray[np.object_]


def absent(labels: Objects) -> Mask:
    """Return where a label has no value."""
    return np.array([label is None for label in labels], dtype=np.bool_)


def _both(endpoints: Endpoints) -> Floats:
    # fmax takes the 0 where running is NaN: some engines report their queue alone.
    return endpoints.column("waiting") + np.fmax(endpoints.column("running"), 0.0)


class Endpoints:
    """Some endpoints of one view: ``rows`` are their rows in the snapshot's table, in ascending order."""

    __slots__ = (
        "_at",
        "_count",
        "_first",
        "_fixed",
        "_mask",
        "_moving",
        "_now_ns",
        "_parent",
        "_trust",
        "_version",
        "doubtful",
        "loads",
        "rows",
        "view",
    )

    def __init__(self, view: View, loads: Loads, rows: Rows, now_ns: int, *, doubtful: bool = False) -> None:
        """Choose ``rows`` of ``view``; ages are those at ``now_ns``."""
        #: Whether these are candidates only because no usable endpoint is left.
        self.doubtful = doubtful
        self.view = view
        self.loads = loads
        self.rows = rows
        self._count = len(rows)
        self._at = without_gaps(rows)
        #: The first row where they have no gap, else -1.
        self._first: int = self._at.start if isinstance(self._at, slice) else -1
        self._now_ns = now_ns
        # Of what these are a part, and which part: what is known of the whole need not be computed again.
        self._parent: Endpoints | None = None
        self._mask: Mask | None = None
        self._trust: dict[str, Floats | None] = {}
        #: What depends on the snapshot alone, and what moves with every pick.
        self._fixed: dict[object, Any] = {}
        self._moving: dict[str, Floats] = {}
        self._version = loads.version

    def __len__(self) -> int:
        return self._count

    def take(self, mask: Mask) -> Endpoints:
        """Return the candidates where ``mask`` holds."""
        part = Endpoints(self.view, self.loads, self.rows[mask], self._now_ns, doubtful=self.doubtful)
        part._parent, part._mask = self, mask
        return part

    def find(self, row: int) -> int:
        """Return where ``row`` stands among the candidates, -1 when it is none of them."""
        if self._first >= 0:
            index = row - self._first
            return index if 0 <= index < self._count else -1
        index = int(self.rows.searchsorted(row))
        return index if index < self._count and self.rows.item(index) == row else -1

    def row(self, index: int) -> int:
        """Return the row of the candidate at ``index``."""
        return self._first + index if self._first >= 0 else int(self.rows.item(index))

    def at(self, now_ns: int) -> None:
        """Judge ages by ``now_ns`` from now on."""
        self._now_ns = now_ns
        self._trust.clear()
        self._fixed.clear()
        self._moving.clear()

    # What the snapshot says.

    def raw(self, name: str) -> Column:
        """Return a snapshot column as it was published, whatever its age. Raises: KeyError if unknown."""
        return self.view.raw(name)[self._at]

    def column(self, name: str) -> Floats:
        """Return a snapshot column as float64; values past their age bound are NaN. Raises: KeyError if unknown."""
        kept: Floats | None = self._fixed.get(name)
        if kept is None:
            kept = self.remember(name, lambda endpoints: endpoints._read(name))  # noqa: SLF001 - one class
        return kept

    def _read(self, name: str) -> Floats:
        index = _GAUGE_INDEX.get(name)
        values: Floats
        if index is not None:
            values = self.view.gauge(index)[self._at]
        else:
            values = self.view.raw(name)[self._at].astype(np.float64)
        dated_by = DATED_BY.get(name)
        return values if dated_by is None else faded(values, self.trust(dated_by))

    def trust(self, dated_by: str = "observed_ns") -> Floats | None:
        """Return how far the values dated by a time column are trusted, 0..1; None = all of them fully."""
        if dated_by not in self._trust:
            if dated_by == "observed_ns" and self._now_ns - self.view.oldest_ns <= FRESH_MIN_NS:
                self._trust[dated_by] = None  # what is true of all rows need not be asked of some
            else:
                self._trust[dated_by] = trust(self.raw(dated_by), self.raw("scrape_interval_s"), self._now_ns)
        return self._trust[dated_by]

    def age_s(self) -> Floats:
        """Return how old the load gauges are, in seconds; NaN when they were never read."""
        values = self._fixed.get("age")
        if values is None:
            observed = self.raw("observed_ns")
            values = (self._now_ns - observed.astype(np.float64)) * 1e-9
            values[observed == 0] = np.nan
            self._fixed["age"] = values
        return values

    @property
    def kv_cache_usage(self) -> Floats:
        """Share of the KV cache in use, 0..1."""
        return self.column("kv_cache_usage")

    @property
    def slowdown(self) -> Floats:
        """Slowdown of the endpoint's GPU: 1 is full speed, 2 is half of it."""
        return self.column("slowdown")

    # The loads, corrected by the picks that the gauges cannot show yet.

    @property
    def waiting(self) -> Floats:
        """Requests queued at the endpoint: its gauge plus the picks made since the moment the gauge describes."""
        return self._corrected("waiting")

    @property
    def running(self) -> Floats:
        """Requests in the engine's batch, plus the picks since: a pick will be in one of the two."""
        return self._corrected("running")

    @property
    def requests(self) -> Floats:
        """Requests at the endpoint: waiting + running + picks since, each pick once; unknown where waiting is."""
        moving = self._current()
        values = moving.get("requests")
        if values is None:
            values = moving["requests"] = self.remember("waiting + running", _both) + self.picks
        return values

    @property
    def picks(self) -> Floats:
        """Picks by all workers of this node since the moment that each endpoint's gauges describe."""
        moving = self._current()
        values = moving.get("picks")
        if values is None:
            values = moving["picks"] = self.loads.picks[self._at]
        return values

    @property
    def in_flight(self) -> Floats:
        """Requests that workers of this node have in flight there: known at once, but only for observed responses."""
        moving = self._current()
        values = moving.get("in_flight")
        if values is None:
            values = moving["in_flight"] = self.loads.in_flight()[self._at]
        return values

    @property
    def active(self) -> Floats:
        """Requests in flight: the larger of the workers' own count and ``requests`` (never unknown)."""
        moving = self._current()
        values = moving.get("active")
        if values is None:
            values = moving["active"] = np.fmax(self.in_flight, self.requests)
        return values

    @property
    def queued_tokens(self) -> Floats:
        """Prompt tokens on their way into the endpoint.

        The larger of what the workers hold in flight and an estimate from the gauges: the tokens of the picks since,
        plus ``waiting`` requests of the mean size seen lately (never unknown: an unreadable gauge adds nothing).
        """
        moving = self._current()
        values = moving.get("queued_tokens")
        if values is None:
            waiting = np.nan_to_num(self.column("waiting"), nan=0.0)
            estimate = self.loads.picked_tokens[self._at] + waiting * self.loads.mean_tokens
            values = moving["queued_tokens"] = np.maximum(self.loads.in_flight_tokens()[self._at], estimate)
        return values

    # Names.

    def label(self, key: str) -> Objects:
        """Return the value of a label at each candidate, None where it has none."""
        return self.view.names.label_values(key)[self.rows]

    def roles(self) -> Objects:
        """Return the disaggregation role of each candidate: the label llm-d.ai/role or the agent's own setting."""
        roles = np.array(self.view.names.roles, dtype=object)[self.rows]
        labels = self.label("llm-d.ai/role")
        return np.where(absent(labels), roles, labels)

    def addresses(self) -> list[str]:
        """Return the ``ip:port`` of each candidate."""
        texts = self.view.names.addresses
        return [texts[row] or "" for row in self.rows]

    def adapter(self, name: str | None) -> tuple[Mask, Mask] | None:
        """Return (running, waiting): where LoRA adapter ``name`` is in flight; None if no endpoint has reported it."""
        slot = self.view.names.adapters.get(name or "")
        if slot is None:
            return None
        bit = np.uint64(1 << (slot % 64))
        running = self.raw(f"lora_running_{slot // 64}") & bit
        waiting = self.raw(f"lora_waiting_{slot // 64}") & bit
        return running != 0, waiting != 0

    def remember(self, key: object, make: Callable[[Endpoints], Floats]) -> Floats:
        """Return the array that ``make(endpoints)`` gave, kept under ``key`` until the next snapshot.

        One entry per candidate, each from that candidate's own values: some of the candidates later take theirs from
        it. Only for what depends on the snapshot alone; never for anything that reads a corrected load.
        """
        kept: Floats | None = self._fixed.get(key)
        if kept is None:
            kept = make(self) if self._parent is None else self._parent.remember(key, make)[self._mask]
            self._fixed[key] = kept
        return kept

    def _corrected(self, name: str) -> Floats:
        moving = self._current()
        values = moving.get(name)
        if values is None:
            values = moving[name] = self.column(name) + self.picks
        return values

    def _current(self) -> dict[str, Floats]:
        version = self.loads.version
        if version != self._version:
            self._moving.clear()
            self._version = version
        return self._moving

"""The endpoints that a request may go to, kept for as long as one snapshot is the newest."""

from __future__ import annotations

from typing import Final

import numpy as np

from zerohop_picker.request.subset import subset as subset_of
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.loads import Loads
from zerohop_picker.state.view import Rows, View

#: Subset hints repeat (they are a pool's members as the gateway sees them); more than this many are not remembered.
_SUBSETS_KEPT: Final = 256
#: How long a verdict about ages stays good while the sequence stands still.
_AGES_HOLD_NS: Final = 5_000_000


class Candidates:
    """Finds candidates by pool and subset.

    First the usable ones. Where there is none, stale or stuck ones. Where there is none of these, endpoints whose
    metrics cannot be read but that may well serve. What is unknown of all of them makes them equal, so they are drawn
    at random. Drained and sleeping endpoints, and those where nobody listens, are never candidates.
    """

    def __init__(self, loads: Loads) -> None:
        """Give the candidates ``loads``."""
        self._loads = loads
        self._view: View | None = None
        self._found: dict[tuple[int | None, tuple[str, ...] | None], Endpoints] = {}
        self._aged_ns = 0

    def of(self, view: View, bit: int | None, subset: tuple[str, ...] | None, now_ns: int) -> Endpoints:
        """Return the candidates, possibly none."""
        if view is not self._view:
            self._view = view
            self._found = {}
            self._aged_ns = now_ns
        elif now_ns - self._aged_ns > _AGES_HOLD_NS:
            self._aged_ns = now_ns
            for endpoints in self._found.values():
                endpoints.at(now_ns)
        key = (bit, subset)
        found = self._found.get(key)
        if found is None:
            if len(self._found) > _SUBSETS_KEPT:
                self._found.clear()
            rows, doubtful = self._rows(view, bit, subset)
            found = self._found[key] = Endpoints(view, self._loads, rows, now_ns, doubtful=doubtful)
        return found

    def _rows(self, view: View, bit: int | None, subset: tuple[str, ...] | None) -> tuple[Rows, bool]:
        allowed = None if subset is None else _rows_of(view, subset)
        rows = _within(view.membership.usable(bit), allowed)
        if len(rows):
            return rows, False
        for doubtful in view.membership.doubtful(bit):
            rows = _within(doubtful, allowed)
            if len(rows):
                break
        return rows, True


def _rows_of(view: View, entries: tuple[str, ...]) -> list[int]:
    allowed = subset_of(entries)
    return [row for row, address in enumerate(view.names.addresses) if address is not None and allowed.allows(address)]


def _within(rows: Rows, allowed: list[int] | None) -> Rows:
    return rows if allowed is None else rows[np.isin(rows, allowed)]

"""What the gauges cannot show yet: the picks made since, and the requests in flight, by all workers of the node.

A gauge describes a moment in the past. A pick made after that moment is missing from it, so a burst that trusted the
gauge alone would go to one endpoint as a herd. Each worker logs its picks in its cell; here they are counted per
endpoint, each against the moment that this endpoint's own gauges describe. The count moves with every pick and is
made anew only when a snapshot brings other moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from zerohop_picker.state.membership import Membership
from zerohop_picker.state.view import Floats, View

#: Picks older than this are in the gauges, or the gauges are past their bound: nothing looks further back.
HORIZON_NS: Final = 5_000_000_000
#: A prompt's size before any was seen, and the least weight of one more in the running mean.
_FIRST_MEAN_TOKENS: Final = 512.0
_MEAN_WEIGHT: Final = 1 / 64
_FEW: Final = 50


class PickLog(Protocol):
    """One worker's ring of picks, oldest overwritten first."""

    #: Time (ns), row and prompt tokens of each entry; entry i of all time lies at ``i % len(ns)``.
    ns: npt.NDArray[np.uint64]
    row: npt.NDArray[np.uint32]
    tokens: npt.NDArray[np.uint32]

    @property
    def head(self) -> int:
        """Entries written since the cell was made."""


class Cells(Protocol):
    """The cells of all live workers, our own included."""

    def logs(self) -> Sequence[PickLog]:
        """Return the pick logs; the list object stays the same while the set of workers does."""

    def in_flight(self, generations: npt.NDArray[np.uint32]) -> tuple[Floats, Floats]:
        """Return requests and prompt tokens in flight per row, counting only entries of the given generations."""


class Loads:
    """Counts per row; ``version`` moves with every ``settle``, that is with every decision."""

    def __init__(self, cells: Cells) -> None:
        """Count what ``cells`` report."""
        self._cells = cells
        self.version = 0
        #: Picks, and their prompt tokens, since each row's ``observed_ns``.
        self.picks: Floats = np.zeros(0)
        self.picked_tokens: Floats = np.zeros(0)
        #: Running mean of prompt tokens per pick.
        self.mean_tokens = _FIRST_MEAN_TOKENS
        self._measured = 0
        self._logs: Sequence[PickLog] = ()
        self._heads: list[int] = []
        self._starts: list[int] = []
        self._moments: bytes = b""
        self._sequence = -1
        self._recount_ns = 0
        self._floor_ns = 0
        self._observed: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        # The same arrays where single entries are read and written: a fifth of the time.
        self._entries: list[tuple[Any, Any, Any, int]] = []
        self._observed_at: Any = memoryview(b"")
        self._picks_at: Any = memoryview(b"")
        self._tokens_at: Any = memoryview(b"")
        self._membership: Membership | None = None
        self._flying: tuple[Floats, Floats] | None = None

    def settle(self, view: View, now_ns: int) -> None:
        """Bring the counts up to date with ``view`` and with the logs as they are now."""
        self._flying = None
        self.version += 1
        logs = self._cells.logs()
        if logs is self._logs and now_ns < self._recount_ns:
            if view.sequence == self._sequence:
                self._catch_up()
                return
            self._sequence = view.sequence
            observed = view.raw("observed_ns")
            moments = observed.tobytes()
            if moments == self._moments and view.membership is self._membership:
                self._catch_up()
                return
            self._moments = moments
        else:
            self._moments = view.raw("observed_ns").tobytes()
            self._sequence = view.sequence
        self._membership = view.membership
        self._observed = view.raw("observed_ns")
        self._observed_at = self._observed.data
        self._recount(view, logs, now_ns)

    def observed_ns(self, row: int) -> int:
        """Return when the gauges of ``row`` were read; 0 = never."""
        found: int = self._observed_at[row]
        return found

    def _catch_up(self) -> None:
        for index, log in enumerate(self._logs):
            head = log.head
            if head != self._heads[index]:
                self._add(index, self._heads[index], head)
                self._heads[index] = head

    def in_flight(self) -> Floats:
        """Return the requests in flight per row, by all live workers."""
        return self._fly()[0]

    def in_flight_tokens(self) -> Floats:
        """Return the prompt tokens in flight per row, by all live workers."""
        return self._fly()[1]

    def _fly(self) -> tuple[Floats, Floats]:
        if self._flying is None:
            membership = self._membership
            none = np.zeros(0, np.uint32)
            self._flying = self._cells.in_flight(none if membership is None else membership.generations)
        return self._flying

    def _recount(self, view: View, logs: Sequence[PickLog], now_ns: int) -> None:
        self._recount_ns = now_ns + HORIZON_NS
        if logs is not self._logs:
            self._logs = logs
            self._starts = [0] * len(logs)
            self._entries = [(g.ns.data, g.row.data, g.tokens.data, len(g.ns)) for g in logs]
        self._heads = [log.head for log in logs]
        self._floor_ns = max(0, now_ns - HORIZON_NS)
        oldest = max(view.oldest_ns, self._floor_ns)
        if len(self.picks) == view.rows:
            self.picks.fill(0.0)
            self.picked_tokens.fill(0.0)
        else:
            self.picks, self.picked_tokens = np.zeros(view.rows), np.zeros(view.rows)
            self._picks_at, self._tokens_at = self.picks.data, self.picked_tokens.data
        for index, log in enumerate(logs):
            head = self._heads[index]
            start = self._advance(index, max(self._starts[index], head - len(log.ns)), head, oldest)
            self._starts[index] = start
            if head - start <= _FEW:
                self._add(index, start, head, measure=False)
            else:
                self._count(log, start, head)

    def _advance(self, index: int, start: int, head: int, oldest: int) -> int:
        """Return the first entry from ``start`` on that is newer than ``oldest``: entries are in order of time.

        Looked for from the end, in doubling steps: few entries are that new.
        """
        ns, _, _, size = self._entries[index]
        low, high, step = start, head, 1
        while high - step >= start:
            if ns[(high - step) % size] <= oldest:
                low = high - step + 1
                break
            high -= step
            step *= 2
        while low < high:
            middle = (low + high) // 2
            if ns[middle % size] > oldest:
                high = middle
            else:
                low = middle + 1
        return low

    def _count(self, log: PickLog, start: int, head: int) -> None:
        size, count = len(log.ns), len(self.picks)
        since = np.maximum(self._observed, np.uint64(self._floor_ns))
        first, last = start % size, head % size
        pieces = [slice(first, last)] if first < last else [slice(first, size), slice(0, last)]
        for piece in pieces:
            rows = log.row[piece]
            known = rows < count
            rows = np.where(known, rows, 0)
            new = known & (log.ns[piece] > since[rows])
            chosen = rows[new]
            self.picks += np.bincount(chosen, minlength=count)
            self.picked_tokens += np.bincount(chosen, log.tokens[piece][new], count)

    def _add(self, index: int, seen: int, head: int, *, measure: bool = True) -> None:
        """Count a few entries one by one; numpy pays off from about fifty on."""
        times, rows, sizes, size = self._entries[index]
        observed, picks, picked_tokens, floor = self._observed_at, self._picks_at, self._tokens_at, self._floor_ns
        count = len(picks)
        for number in range(max(seen, head - size), head):
            at = number % size
            row, tokens, ns = rows[at], sizes[at], times[at]
            if measure and tokens:
                self._measured += 1
                self.mean_tokens += (tokens - self.mean_tokens) * max(_MEAN_WEIGHT, 1.0 / self._measured)
            if row < count and ns > floor and ns > observed[row]:
                picks[row] += 1.0
                picked_tokens[row] += tokens

"""Which rows are endpoints, of which pool, and in which condition: what seldom changes between snapshots."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from zerohop_snapshot.layout import Flag, UnhealthyReason

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

_USED: Final = np.uint32(int(Flag.USED))
_UNHEALTHY: Final = np.uint32(int(Flag.UNHEALTHY))
#: An endpoint in one of these states takes no request while another one can.
_NOT_USABLE: Final = np.uint32(int(Flag.DRAIN | Flag.UNHEALTHY | Flag.STALE | Flag.SLEEPING | Flag.STUCK))
#: These hold an endpoint back even when no other is left: it would not serve, or was asked not to.
_NEVER_USABLE: Final = np.uint32(int(Flag.DRAIN | Flag.SLEEPING))
#: Unhealthy for one of these reasons means "nobody listens there"; for the others only its metrics are unreadable.
_DEAD_REASONS: Final = [int(r) for r in (UnhealthyReason.REFUSED, UnhealthyReason.DEAD, UnhealthyReason.RESET)]


def without_gaps(rows: Rows) -> Rows | slice:
    """Return ``rows`` (ascending) as a slice where they have no gap: a view instead of a gather, in half the time."""
    size = len(rows)
    if size and int(rows[-1]) - int(rows[0]) == size - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


class Membership:
    """The flags, reasons, pools and generations of one or more snapshots in a row that agree in them."""

    def __init__(self, flags: Any, reasons: Any, pools: Any, generations: Any, key: bytes) -> None:
        """Take the four columns; ``key`` is their bytes, to know the same membership again."""
        self.key = key
        self.flags: npt.NDArray[np.uint32] = flags
        self.reasons: npt.NDArray[np.uint32] = reasons
        self.pools: npt.NDArray[np.uint64] = pools
        self.generations: npt.NDArray[np.uint32] = generations
        #: Rows in use.
        self.used: Mask = (flags & _USED) != 0
        self.used_rows = without_gaps(np.flatnonzero(self.used))
        self._usable: dict[int | None, Rows] = {}

    def members(self, pool_bit: int | None) -> Mask:
        """Return which rows are in use and belong to the pool (None = any)."""
        if pool_bit is None:
            return self.used
        member: Mask = self.used & ((self.pools & np.uint64(1 << pool_bit)) != 0)
        return member

    def usable(self, pool_bit: int | None) -> Rows:
        """Return the rows of the pool that health allows: not drained, unhealthy, stale, sleeping or stuck."""
        rows = self._usable.get(pool_bit)
        if rows is None:
            rows = np.flatnonzero(self.members(pool_bit) & ((self.flags & _NOT_USABLE) == 0))
            self._usable[pool_bit] = rows
        return rows

    def doubtful(self, pool_bit: int | None) -> tuple[Rows, Rows]:
        """Return the rows to try when none is usable: first stale or stuck ones, then those with unreadable metrics.

        Drained and sleeping endpoints are in neither, nor are those where nobody listens.
        """
        allowed = self.members(pool_bit) & ((self.flags & _NEVER_USABLE) == 0)
        unhealthy = (self.flags & _UNHEALTHY) != 0
        dead = np.isin((self.reasons >> np.uint32(8)) & np.uint32(255), _DEAD_REASONS)
        return np.flatnonzero(allowed & ~unhealthy), np.flatnonzero(allowed & unhealthy & ~dead)

"""One published snapshot as numpy columns, and the loads that a decision may trust at a given moment.

`View` belongs to one sequence number. It copies nothing (the columns are views of the reader's private copy) and
computes each derived array once: at the next decision with the same sequence they are there already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from zerohop_picker.state.names import Names, decode
from zerohop_snapshot.layout import ENDPOINT_COLUMNS, Flag, TypeCode, UnhealthyReason, column_offsets

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

_DTYPES: Final[Mapping[str, np.dtype[np.generic]]] = {
    "Q": np.dtype("<u8"), "I": np.dtype("<u4"), "f": np.dtype("<f4"), "d": np.dtype("<f8"),
}  # fmt: skip

#: An endpoint in one of these states takes no request while another one can.
NOT_USABLE: Final = int(Flag.DRAIN | Flag.UNHEALTHY | Flag.STALE | Flag.SLEEPING | Flag.STUCK)
#: These can hold back an endpoint even when no other is left: it would not serve, or was asked not to.
NEVER_USABLE: Final = int(Flag.DRAIN | Flag.SLEEPING)
#: Unhealthy for one of these reasons means "nobody listens there"; for the others only its metrics are unreadable.
_DEAD_REASONS: Final = (UnhealthyReason.REFUSED, UnhealthyReason.DEAD, UnhealthyReason.RESET)

#: A value is taken as it is up to this many scrape intervals (at least FRESH_MIN_S), and is unknown after
#: EXPIRE_INTERVALS (at least EXPIRE_MIN_S); in between it fades towards the mean of the fresh ones.
FRESH_INTERVALS: Final = 3.0
FRESH_MIN_S: Final = 0.2
EXPIRE_INTERVALS: Final = 10.0
EXPIRE_MIN_S: Final = 2.0
#: How long a verdict about ages stays good while the sequence stands still.
_AGE_CHECK_NS: Final = 5_000_000
#: The columns that the age rules apply to, each with the time column that dates it.
DATED_BY: Final[Mapping[str, str]] = {
    **dict.fromkeys(("waiting", "running", "kv_cache_usage"), "observed_ns"),
    **dict.fromkeys(
        ("lora_count", "prompt_tokens_rate", "generation_tokens_rate", "ttft_mean_s", "itl_mean_s"),
        "detail_observed_ns",
    ),
}


class SnapshotLike(Protocol):
    """What is needed of ``zerohop_snapshot.Snapshot``."""

    @property
    def sequence(self) -> int: ...  # noqa: D102
    @property
    def published_ns(self) -> int: ...  # noqa: D102
    @property
    def row_stride(self) -> int: ...  # noqa: D102
    @property
    def endpoint_block(self) -> bytes | memoryview: ...  # noqa: D102
    @property
    def cold(self) -> bytes: ...  # noqa: D102
    @property
    def cold_generation(self) -> int: ...  # noqa: D102


class ReaderLike(Protocol):
    """What is needed of ``zerohop_snapshot.SnapshotReader``."""

    def read(self, now_ns: int | None = None) -> SnapshotLike | None: ...  # noqa: D102


class View:
    """The columns of one snapshot, each ``rows`` long; times in ns, ratios 0..1, NaN where unknown."""

    __slots__ = ("_aged_ns", "_columns", "_dated", "_offsets", "names", "published_ns", "rows", "sequence", "snapshot")

    def __init__(self, snapshot: SnapshotLike, names: Names, offsets: Mapping[str, tuple[int, TypeCode]]) -> None:
        """View ``snapshot``; ``offsets`` are those of its row stride."""
        self.snapshot = snapshot
        self.names = names
        self.sequence = snapshot.sequence
        self.published_ns = snapshot.published_ns
        self.rows = snapshot.row_stride
        self._offsets = offsets
        self._columns: dict[str, npt.NDArray[np.generic]] = {}
        self._dated: dict[str, Floats] = {}
        self._aged_ns = 0

    def raw(self, name: str) -> npt.NDArray[np.generic]:
        """Return column ``name`` as it was published, whatever its age. Raises: KeyError for an unknown name."""
        column = self._columns.get(name)
        if column is None:
            offset, code = self._offsets[name]
            column = np.frombuffer(self.snapshot.endpoint_block, _DTYPES[code], self.rows, offset)
            self._columns[name] = column
        return column

    def refresh(self, now_ns: int) -> bool:
        """Forget derived values whose age may have changed by ``now_ns``; return whether it forgot anything."""
        if now_ns - self._aged_ns < _AGE_CHECK_NS:
            return False
        self._aged_ns = now_ns
        self._dated.clear()
        return True

    def values(self, name: str) -> Floats:
        """Return column ``name`` as float64 after the age rules: too old is NaN, ageing fades towards the mean.

        Valid for the moment last given to ``refresh``. Raises: KeyError for an unknown name.
        """
        column = self._dated.get(name)
        if column is None:
            column = self.raw(name).astype(np.float64)
            dated_by = DATED_BY.get(name)
            if dated_by is not None:
                column = self._faded(column, dated_by)
            self._dated[name] = column
        return column

    def age_s(self, dated_by: str = "observed_ns") -> Floats:
        """Return the age of a time column in seconds; NaN where it is 0 (never)."""
        key = f"age of {dated_by}"
        age = self._dated.get(key)
        if age is None:
            observed = self.raw(dated_by)
            age = np.where(observed == 0, np.nan, (self._aged_ns - observed.astype(np.float64)) * 1e-9)
            self._dated[key] = age
        return age

    def trust(self, dated_by: str = "observed_ns") -> Floats:
        """Return 1 for a fresh value, 0 for one that counts as unknown, and a straight line between the bounds."""
        key = f"trust in {dated_by}"
        trust = self._dated.get(key)
        if trust is None:
            interval = np.nan_to_num(self.raw("scrape_interval_s").astype(np.float64), nan=0.0)
            fresh = np.maximum(interval * FRESH_INTERVALS, FRESH_MIN_S)
            expire = np.maximum(interval * EXPIRE_INTERVALS, EXPIRE_MIN_S)
            trust = np.clip((expire - self.age_s(dated_by)) / (expire - fresh), 0.0, 1.0)
            trust = np.nan_to_num(trust, nan=0.0)
            self._dated[key] = trust
        return trust

    def _faded(self, column: Floats, dated_by: str) -> Floats:
        trust = self.trust(dated_by)
        if trust.size and trust.min() >= 1.0:
            return column
        fresh = column[(trust >= 1.0) & np.isfinite(column)]
        if fresh.size:
            column = trust * column + (1.0 - trust) * fresh.mean()
        return np.where(trust > 0.0, column, np.nan)

    def members(self, pool_bit: int | None) -> Mask:
        """Return which rows are in use and belong to the pool (None = any)."""
        member = (self.raw("flags") & np.uint32(Flag.USED)) != 0
        if pool_bit is not None:
            member &= (self.raw("pools") & np.uint64(1 << pool_bit)) != 0
        return member

    def usable(self, pool_bit: int | None) -> Rows:
        """Return the rows of the pool that health allows: not drained, unhealthy, stale, sleeping or stuck."""
        return np.flatnonzero(self.members(pool_bit) & ((self.raw("flags") & np.uint32(NOT_USABLE)) == 0))

    def doubtful(self, pool_bit: int | None) -> tuple[Rows, Rows]:
        """Return the rows to try when none is usable: first stale or stuck ones, then those with unreadable metrics.

        Drained and sleeping endpoints are in neither, nor are those where nobody listens.
        """
        flags = self.raw("flags")
        allowed = self.members(pool_bit) & ((flags & np.uint32(NEVER_USABLE)) == 0)
        unhealthy = (flags & np.uint32(Flag.UNHEALTHY)) != 0
        reason = (self.raw("reasons") >> np.uint32(8)) & np.uint32(255)
        dead = np.isin(reason, _DEAD_REASONS)
        return np.flatnonzero(allowed & ~unhealthy), np.flatnonzero(allowed & unhealthy & ~dead)


class Latest:
    """The newest view that a reader can give: the same object until the agent publishes again."""

    def __init__(self, reader: ReaderLike) -> None:
        """Follow ``reader``."""
        self._reader = reader
        self._view: View | None = None
        self._names: tuple[int, int, Names] | None = None
        self._offsets: tuple[int, Mapping[str, tuple[int, TypeCode]]] = (-1, {})

    def view(self, now_ns: int) -> View | None:
        """Return the newest view, its ages settled for ``now_ns``; None while there is no readable snapshot."""
        snapshot = self._reader.read(now_ns)
        if snapshot is None:
            return None
        view = self._view
        if view is None or view.snapshot is not snapshot:
            view = self._view = self._fresh(snapshot)
        return view

    def _fresh(self, snapshot: SnapshotLike) -> View:
        names = self._names
        if names is None or names[0] != snapshot.cold_generation or names[1] != snapshot.row_stride:
            decoded = decode(snapshot.cold, snapshot.row_stride)
            names = self._names = (snapshot.cold_generation, snapshot.row_stride, decoded)
        if self._offsets[0] != snapshot.row_stride:
            self._offsets = (snapshot.row_stride, column_offsets(ENDPOINT_COLUMNS, snapshot.row_stride))
        return View(snapshot, names[2], self._offsets[1])

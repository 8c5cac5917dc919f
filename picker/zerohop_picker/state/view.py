"""One published snapshot as numpy columns. Nothing is copied: the columns are views of the reader's private copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from zerohop_picker.state.membership import Mask, Membership, Rows
from zerohop_picker.state.names import Names, decode
from zerohop_snapshot.layout import ENDPOINT_COLUMNS, TypeCode, column_offsets

__all__ = ["Column", "Floats", "Latest", "Mask", "ReaderLike", "Rows", "SnapshotLike", "View"]

Floats = npt.NDArray[np.float64]
#: A column as published: its type depends on its name.
Column = npt.NDArray[Any]

_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "Q": np.dtype("<u8"), "I": np.dtype("<u4"), "f": np.dtype("<f4"), "d": np.dtype("<f8"),
}  # fmt: skip

#: Neighbours in the layout (a test looks), read by nearly every decision.
GAUGES: Final = ("waiting", "running", "kv_cache_usage", "slowdown")


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

    __slots__ = (
        "_block",
        "_columns",
        "_gauges",
        "_offsets",
        "_oldest_ns",
        "membership",
        "names",
        "published_ns",
        "rows",
        "sequence",
        "snapshot",
    )

    def __init__(
        self,
        snapshot: SnapshotLike,
        names: Names,
        offsets: Mapping[str, tuple[int, TypeCode]],
        last: Membership | None = None,
    ) -> None:
        """View ``snapshot``; ``offsets`` are those of its row stride, ``last`` the previous view's membership."""
        self.snapshot = snapshot
        self.names = names
        self.sequence = snapshot.sequence
        self.published_ns = snapshot.published_ns
        self.rows = snapshot.row_stride
        self._block = snapshot.endpoint_block
        self._offsets = offsets
        self._columns: dict[str, Column] = {}
        self._gauges: Floats | None = None
        self._oldest_ns: int | None = None
        # generation, flags and reasons lie side by side.
        pools, start, end = offsets["pools"][0], offsets["generation"][0], offsets["origin"][0]
        key = bytes(self._block[start:end]) + bytes(self._block[pools : pools + 8 * self.rows])
        if last is not None and last.key == key:
            self.membership = last
        else:
            raw = self.raw
            self.membership = Membership(raw("flags"), raw("reasons"), raw("pools"), raw("generation"), key)

    def raw(self, name: str) -> Column:
        """Return column ``name`` as it was published, whatever its age. Raises: KeyError for an unknown name."""
        column = self._columns.get(name)
        if column is None:
            offset, code = self._offsets[name]
            column = self._columns[name] = np.frombuffer(self._block, _DTYPES[code], self.rows, offset)
        return column

    def gauge(self, index: int) -> Floats:
        """Return column GAUGES[index] as float64: these four lie side by side, so one conversion does for all."""
        gauges = self._gauges
        if gauges is None:
            offset = self._offsets[GAUGES[0]][0]
            raw = np.frombuffer(self._block, "<f4", len(GAUGES) * self.rows, offset)
            gauges = self._gauges = raw.astype(np.float64).reshape(len(GAUGES), self.rows)
        gauge: Floats = gauges[index]
        return gauge

    @property
    def oldest_ns(self) -> int:
        """The earliest ``observed_ns`` among the rows in use; 0 when one was never read, or none is in use."""
        oldest = self._oldest_ns
        if oldest is None:
            observed = self.raw("observed_ns")[self.membership.used_rows]
            oldest = self._oldest_ns = int(np.minimum.reduce(observed)) if len(observed) else 0
        return oldest


class Latest:
    """The newest view that a reader can give: the same object until the agent publishes again."""

    def __init__(self, reader: ReaderLike) -> None:
        """Follow ``reader``."""
        self._reader = reader
        self._view: View | None = None
        self._names: tuple[int, int, Names] | None = None
        self._offsets: tuple[int, Mapping[str, tuple[int, TypeCode]]] = (-1, {})

    def view(self, now_ns: int) -> View | None:
        """Return the newest view; None while there has never been a readable snapshot."""
        snapshot = self._reader.read(now_ns)
        if snapshot is None:
            return None
        view = self._view
        if view is None or view.snapshot is not snapshot:
            view = self._view = self._fresh(snapshot)
        return view

    def _fresh(self, snapshot: SnapshotLike) -> View:
        names = self._names
        rows = snapshot.row_stride
        if names is None or names[0] != snapshot.cold_generation or names[1] != rows:
            names = self._names = (snapshot.cold_generation, rows, decode(snapshot.cold, rows))
        if self._offsets[0] != rows:
            self._offsets = (rows, column_offsets(ENDPOINT_COLUMNS, rows))
        last = self._view.membership if self._view is not None else None
        return View(snapshot, names[2], self._offsets[1], last)

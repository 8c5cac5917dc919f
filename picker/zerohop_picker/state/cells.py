"""The worker cells in shared memory as numpy arrays: pick logs and in-flight counts of all live workers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zerohop_picker.state.view import Floats
from zerohop_snapshot import PeerCell, PeerCells, PickerCell

_ENTRY = np.dtype([("ns", "<u8"), ("row", "<u4"), ("tokens", "<u4")])
_COUNT_MASK = np.uint64(0xFFFF_FFFF)


class CellArrays:
    """One worker's cell: live views of its memory, nothing is copied."""

    __slots__ = ("_cell", "_in_flight", "_tokens", "ns", "row", "tokens")

    def __init__(self, cell: PeerCell) -> None:
        """View ``cell``; the views keep its map alive."""
        self._cell = cell
        entries = np.frombuffer(cell.memory, _ENTRY, cell.log_capacity, cell.log_offset)
        self.ns: npt.NDArray[np.uint64] = entries["ns"]
        self.row: npt.NDArray[np.uint32] = entries["row"]
        self.tokens: npt.NDArray[np.uint32] = entries["tokens"]
        self._in_flight = np.frombuffer(cell.memory, "<u8", cell.endpoint_capacity, cell.in_flight_offset)
        self._tokens = np.frombuffer(cell.memory, "<u8", cell.endpoint_capacity, cell.tokens_offset)

    @property
    def head(self) -> int:
        """Picks ever logged."""
        return self._cell.log_head

    def add_to(self, requests: Floats, tokens: Floats, generations: npt.NDArray[np.uint32]) -> None:
        """Add this worker's requests and tokens in flight, row by row, where the generation is the current one."""
        rows = min(len(requests), len(self._in_flight))
        words = self._in_flight[:rows]
        current = (words >> np.uint64(32)) == generations[:rows]
        requests[:rows] += np.where(current, words & _COUNT_MASK, 0)
        tokens[:rows] += np.where(current, self._tokens[:rows], 0)


class SharedCells:
    """The cells of this node's live workers; ours is always among them, from its first pick on."""

    def __init__(self, peers: PeerCells, own: PickerCell | None) -> None:
        """Watch ``peers``; ``own`` is this worker's cell."""
        self._peers = peers
        self._own = own.view() if own is not None else None
        self._live: list[PeerCell] | None = None
        self._inodes: list[int] = []
        self._arrays: list[CellArrays] = []

    def logs(self) -> Sequence[CellArrays]:
        """Return the arrays of every live cell: the same list until a worker comes or goes."""
        live = self._peers.live()
        if live is not self._live:
            cells = list(live)
            if self._own is not None and all(cell.inode != self._own.inode for cell in cells):
                cells.append(self._own)
            if self._live is None or [cell.inode for cell in cells] != self._inodes:
                self._arrays = [CellArrays(cell) for cell in cells]
                self._inodes = [cell.inode for cell in cells]
            self._live = live
        return self._arrays

    def in_flight(self, generations: npt.NDArray[np.uint32]) -> tuple[Floats, Floats]:
        """Return requests and prompt tokens in flight per row."""
        requests, tokens = np.zeros(len(generations)), np.zeros(len(generations))
        for arrays in self.logs():
            arrays.add_to(requests, tokens, generations)
        return requests, tokens

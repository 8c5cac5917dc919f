"""`picker-NAME.cell`: what one picker worker has in flight, for the other workers, the agent and the console.

    fields of the kind PICK, from byte 128 (8-byte words)
      0 heartbeat_ns   1 log_head (picks ever)   2 endpoint_capacity   3 log_capacity
      4.. PICKER_TOTALS, one word each
    byte 256: in_flight  u64 x endpoint_capacity: generation << 32 | requests in flight of that generation
              tokens     u64 x endpoint_capacity: uncached prompt tokens in flight
              picks      u64 x endpoint_capacity: picks of that generation, ever
              log        log_capacity entries of 16 bytes: u64 picked_ns, u32 row, u32 tokens; entry n at n % capacity

Each word is stored whole by one writer, so readers take words as they are: no checksum. The log says which picks are
younger than a value, which is the one correction that stops herding: waiting + picks made since it was observed.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Final

from .cells import CellFolder, CellWriter, MappedCell, cell_path, open_cell
from .header import HEADER_BYTES, FileHeader

__all__ = ["LOG_ENTRY", "PICKER_TOTALS", "PeerCell", "PeerCells", "PickerCell"]

KIND: Final = b"PICK"
PREFIX: Final = "picker"
LOG_ENTRY: Final = struct.Struct("<QII")
PICKER_TOTALS: Final = ("requests", "picks", "refusals", "fallbacks", "errors", "cancelled")
_HEARTBEAT, _HEAD, _CAPACITY, _LOG, _TOTALS = range(16, 21)
_COUNT_MASK: Final = 0xFFFF_FFFF
_TOTAL_WORD: Final = {name: _TOTALS + index for index, name in enumerate(PICKER_TOTALS)}


def _sizes(endpoints: int, log: int) -> tuple[int, int, int, int, int]:
    """Offsets of in_flight, tokens, picks, log, and the file's size."""
    in_flight = HEADER_BYTES
    tokens, picks = in_flight + 8 * endpoints, in_flight + 16 * endpoints
    entries = in_flight + 24 * endpoints
    return in_flight, tokens, picks, entries, entries + LOG_ENTRY.size * log


class PickerCell:
    """This worker's own cell. Not thread safe: one event loop writes it.

    Raises: WriterLocked, SnapshotError.
    """

    def __init__(
        self,
        shm_dir: Path,
        name: str,
        endpoint_capacity: int = 256,
        log_capacity: int = 8192,
        *,
        mode: int = 0o640,
        group: str | None = None,
    ) -> None:
        offsets = _sizes(endpoint_capacity, log_capacity)
        specific = struct.pack("<QQQQ", time.monotonic_ns(), 0, endpoint_capacity, log_capacity)
        path = cell_path(shm_dir, PREFIX, name)
        self._cell = CellWriter(path, KIND, offsets[4], specific, mode=mode, group=group)
        self.path: Final = path
        self.name: Final = name
        self.endpoint_capacity: Final = endpoint_capacity
        self.log_capacity: Final = log_capacity
        self._words = self._cell.words
        self._bytes = self._cell.bytes
        self._in_flight, self._tokens, self._picks = (offset // 8 for offset in offsets[:3])
        self._log = offsets[3]
        self._head = 0

    def start(self, row: int, generation: int, tokens: int, now_ns: int) -> None:
        """Count one request in flight at a row and write the pick to the log. A row past the capacity is ignored."""
        if not 0 <= row < self.endpoint_capacity:
            return
        words = self._words
        word = words[self._in_flight + row]
        if word >> 32 != generation:
            word = generation << 32
            words[self._tokens + row] = words[self._picks + row] = 0
        words[self._in_flight + row] = word + 1
        words[self._tokens + row] += tokens
        words[self._picks + row] += 1
        offset = self._log + self._head % self.log_capacity * 16
        self._bytes[offset : offset + 16] = LOG_ENTRY.pack(now_ns, row, min(tokens, _COUNT_MASK))
        self._head += 1
        words[_HEAD] = self._head
        words[_HEARTBEAT] = now_ns

    def release_tokens(self, row: int, generation: int, tokens: int) -> None:
        """Take prompt tokens out again before the request ends (its prefill is done)."""
        if 0 <= row < self.endpoint_capacity and self._words[self._in_flight + row] >> 32 == generation:
            index = self._tokens + row
            self._words[index] = max(self._words[index] - tokens, 0)

    def finish(self, row: int, generation: int, tokens: int = 0) -> None:
        """Take one request (and tokens not yet released) out. A row that has changed hands since is left alone."""
        if not 0 <= row < self.endpoint_capacity:
            return
        word = self._words[self._in_flight + row]
        if word >> 32 == generation and word & _COUNT_MASK:
            self._words[self._in_flight + row] = word - 1
            self.release_tokens(row, generation, tokens)

    def count(self, total: str, by: int = 1) -> None:
        """Add to one of PICKER_TOTALS. Raises: KeyError for another name."""
        self._words[_TOTAL_WORD[total]] += by

    def heartbeat(self, now_ns: int | None = None) -> None:
        """Say that this worker lives; call it at least every second."""
        self._words[_HEARTBEAT] = time.monotonic_ns() if now_ns is None else now_ns

    def in_flight(self, row: int, generation: int) -> int:
        """Requests in flight at a row, 0 when the row's generation is another one."""
        word = self._words[self._in_flight + row]
        return word & _COUNT_MASK if word >> 32 == generation else 0

    def view(self) -> PeerCell:
        """The same cell as readers see it; it lives as long as this writer's file."""
        cell = PeerCell.open(self.path)
        if cell is None:
            raise RuntimeError(f"{self.path}: disappeared while its writer was using it")
        return cell

    def close(self) -> None:
        """Remove the cell."""
        self._cell.close()


class PeerCell:
    """A worker's cell as its readers see it: live memory, no copies.

    `memory` is the whole file; `in_flight_offset`, `tokens_offset`, `picks_offset` and `log_offset` say where the
    arrays start, for `numpy.frombuffer(memory, "<u8", endpoint_capacity, offset)` and the like.
    """

    def __init__(self, mapped: MappedCell) -> None:
        self.header: Final[FileHeader] = mapped.header
        self.inode: Final[int] = mapped.inode
        self.name: Final = mapped.path.name.removeprefix(PREFIX + "-").removesuffix(".cell")
        self._words = mapped.words
        self.memory: Final = memoryview(mapped.map)
        self.endpoint_capacity: Final[int] = self._words[_CAPACITY]
        self.log_capacity: Final[int] = self._words[_LOG]
        offsets = _sizes(self.endpoint_capacity, self.log_capacity)
        self.in_flight_offset, self.tokens_offset, self.picks_offset, self.log_offset, self.size = offsets

    @classmethod
    def open(cls, path: Path) -> PeerCell | None:
        """Map a cell; None when it is not a readable picker cell."""
        mapped = open_cell(path, KIND)
        if mapped is None:
            return None
        cell = cls(mapped)
        return cell if cell.size == len(mapped.map) else None

    @property
    def heartbeat_ns(self) -> int:
        """CLOCK_MONOTONIC of the worker's last sign of life."""
        value: int = self._words[_HEARTBEAT]
        return value

    @property
    def log_head(self) -> int:
        """Picks ever made; the newest is log entry (log_head - 1) % log_capacity."""
        value: int = self._words[_HEAD]
        return value

    def in_flight(self, row: int, generation: int) -> int:
        """Requests that this worker has in flight at a row of that generation."""
        if not 0 <= row < self.endpoint_capacity:
            return 0
        word = self._words[self.in_flight_offset // 8 + row]
        return word & _COUNT_MASK if word >> 32 == generation else 0

    def picks(self, row: int, generation: int) -> int:
        """Picks that this worker made of a row in that generation."""
        if not 0 <= row < self.endpoint_capacity or self._words[self.in_flight_offset // 8 + row] >> 32 != generation:
            return 0
        value: int = self._words[self.picks_offset // 8 + row]
        return value

    def totals(self) -> dict[str, int]:
        """PICKER_TOTALS by name."""
        return {name: self._words[_TOTALS + index] for index, name in enumerate(PICKER_TOTALS)}


class PeerCells:
    """The cells of all live picker workers in a shm directory (this process's own included)."""

    def __init__(self, shm_dir: Path) -> None:
        self._folder = CellFolder(shm_dir, PREFIX, PeerCell.open)
        self._live: list[PeerCell] = []
        self._next_ns = 0

    def live(self, now_ns: int | None = None) -> list[PeerCell]:
        """Cells whose writers run; re-judged every 250 ms, so call it as often as you like."""
        now = time.monotonic_ns() if now_ns is None else now_ns
        if now >= self._next_ns:
            self._next_ns = now + 250_000_000
            self._folder.refresh(now)
            self._live = [
                cell
                for cell in self._folder.cells.values()
                if self._folder.is_alive(cell.header.writer, cell.heartbeat_ns, now)
            ]
        return self._live

    def in_flight(self, row: int, generation: int, now_ns: int | None = None) -> int:
        """Requests in flight at a row over all live workers."""
        return sum(cell.in_flight(row, generation) for cell in self.live(now_ns))

"""`engine-NAME.cell`: the state of one engine, written by a plugin inside the model server after each step.

fields of the kind ENGC, from byte 128 (8-byte words): 0 sequence, 1 field count, 2 text capacity
byte 256: 2 slots, sequence s in slot s % 2, each:
  0   u64 sequence      8  u64 written_ns (CLOCK_MONOTONIC)      16 u32 text_bytes     20 u32 crc32
  24  ENGINE_FIELDS, one float64 each, NaN = unknown
  ..  text: JSON with what changes rarely (names, addresses, adapters)
The crc covers bytes 0..19 of the slot, the fields and the text in use.
"""

from __future__ import annotations

import json
import math
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .cells import CellFolder, CellWriter, MappedCell, cell_path, open_cell
from .header import HEADER_BYTES, FileHeader

__all__ = ["ENGINE_FIELDS", "EngineCell", "EngineCellWriter", "EngineCells", "EngineState"]

KIND: Final = b"ENGC"
PREFIX: Final = "engine"
TEXT_BYTES: Final = 16_384
#: order is the layout; append only, and move CELL_VERSION when a meaning changes
ENGINE_FIELDS: Final = (
    "waiting", "running", "kv_cache_usage",
    "prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits", "preemptions", "steps",
    "sleep_level", "lora_max", "block_size", "num_blocks", "kv_capacity_tokens", "max_model_len", "engine_index",
    "ttft_sum_s", "ttft_count", "itl_sum_s", "itl_count",
)  # fmt: skip
_INDEX: Final = {name: index for index, name in enumerate(ENGINE_FIELDS)}
_FIELDS: Final = struct.Struct(f"<{len(ENGINE_FIELDS)}d")
_HEAD: Final = struct.Struct("<QQII")
_SLOT_BYTES: Final = _HEAD.size + _FIELDS.size + TEXT_BYTES
_SEQUENCE_WORD: Final = 128 // 8
_FILE_BYTES: Final = HEADER_BYTES + 2 * _SLOT_BYTES


#: an engine that died is noticed this late
_JUDGE_NS: Final = 250_000_000


class EngineCellWriter:
    """The plugin's side. Not thread safe: one engine's logger calls it.

    Raises: WriterLocked, SnapshotError.
    """

    def __init__(self, shm_dir: Path, name: str, *, mode: int = 0o640, group: str | None = None) -> None:
        path = cell_path(shm_dir, PREFIX, name)
        specific = struct.pack("<QQQ", 0, len(ENGINE_FIELDS), TEXT_BYTES)
        self._cell = CellWriter(path, KIND, _FILE_BYTES, specific, mode=mode, group=group)
        self.path: Final = path
        self._values = [math.nan] * len(ENGINE_FIELDS)
        self._text = b"{}"
        self._sequence = 0
        self._scratch = bytearray(_SLOT_BYTES)

    def set(self, name: str, value: float | None) -> None:
        """Change one field for the next `publish`; None is unknown. Raises: KeyError."""
        self._values[_INDEX[name]] = math.nan if value is None else value

    def set_text(self, text: Mapping[str, Any]) -> bool:
        """Replace the text part (a JSON map); False when it is too long, and the old one stays."""
        encoded = json.dumps(text, separators=(",", ":")).encode()
        if len(encoded) > TEXT_BYTES:
            return False
        self._text = encoded
        return True

    def publish(self, now_ns: int | None = None) -> None:
        """Make the fields visible; about 3 us."""
        sequence = self._sequence + 1
        scratch, text = self._scratch, self._text
        end = _HEAD.size + _FIELDS.size
        _FIELDS.pack_into(scratch, _HEAD.size, *self._values)
        scratch[end : end + len(text)] = text
        end += len(text)
        _HEAD.pack_into(scratch, 0, sequence, time.monotonic_ns() if now_ns is None else now_ns, len(text), 0)
        view = memoryview(scratch)
        crc = zlib.crc32(view[_HEAD.size : end], zlib.crc32(view[:20]))
        scratch[20:24] = crc.to_bytes(4, "little")
        start = HEADER_BYTES + sequence % 2 * _SLOT_BYTES
        self._cell.bytes[start : start + end] = view[:end]
        self._cell.words[_SEQUENCE_WORD] = sequence
        self._sequence = sequence

    def close(self) -> None:
        """Remove the cell."""
        self._cell.close()


@dataclass(frozen=True, slots=True)
class EngineState:
    """What an engine wrote last: `fields` by name (NaN unknown), `text` as the plugin gave it."""

    name: str
    sequence: int
    #: CLOCK_MONOTONIC of the step's end, ns
    written_ns: int
    fields: Mapping[str, float]
    text: Mapping[str, Any]


class EngineCell:
    """One engine's cell, mapped for reading."""

    def __init__(self, mapped: MappedCell) -> None:
        self._mapped = mapped
        self.header: Final[FileHeader] = mapped.header
        self.inode: Final[int] = mapped.inode
        self.name: Final = mapped.path.name.removeprefix(PREFIX + "-").removesuffix(".cell")
        self._last: EngineState | None = None
        self._raw_text, self._text = b"", {}  # type: tuple[bytes, dict[str, Any]]

    @classmethod
    def open(cls, path: Path) -> EngineCell | None:
        """Map a cell; None when it is not a readable engine cell."""
        mapped = open_cell(path, KIND)
        return None if mapped is None or len(mapped.map) != _FILE_BYTES else cls(mapped)

    def read(self) -> EngineState | None:
        """The newest consistent state, else the last good one; None before the first step."""
        words, mapped = self._mapped.words, self._mapped.map
        for _ in range(3):
            sequence = words[_SEQUENCE_WORD]
            if sequence == 0 or (self._last is not None and self._last.sequence == sequence):
                break
            start = HEADER_BYTES + sequence % 2 * _SLOT_BYTES
            found, written, text_bytes, crc = _HEAD.unpack_from(mapped, start)
            if found != sequence or text_bytes > TEXT_BYTES:
                continue
            body = mapped[start + _HEAD.size : start + _HEAD.size + _FIELDS.size + text_bytes]
            if zlib.crc32(body, zlib.crc32(_HEAD.pack(found, written, text_bytes, 0)[:20])) != crc:
                continue
            fields = dict(zip(ENGINE_FIELDS, _FIELDS.unpack_from(body), strict=True))
            self._last = EngineState(self.name, sequence, written, fields, self._decode(body[_FIELDS.size :]))
            break
        return self._last

    def _decode(self, raw: bytes) -> dict[str, Any]:
        if raw != self._raw_text:
            try:
                text = json.loads(raw)
            except ValueError:
                text = {}
            self._raw_text, self._text = raw, text if isinstance(text, dict) else {}
        return self._text


class EngineCells:
    """All engine cells of a shm directory whose engines run."""

    def __init__(self, shm_dir: Path) -> None:
        self._folder = CellFolder(shm_dir, PREFIX, EngineCell.open)
        self._dead: set[Path] = set()
        self._judge_ns = 0

    def read(self, now_ns: int | None = None) -> Iterator[EngineState]:
        """The state of each live engine that has stepped at least once. An idle engine's state is old, not gone.

        Whether the engines run is judged anew every 250 ms: it costs a file in /proc each.
        """
        now = time.monotonic_ns() if now_ns is None else now_ns
        if self._folder.refresh(now) or now >= self._judge_ns:
            self._judge_ns = now + _JUDGE_NS
            self._dead = {path for path, cell in self._folder.cells.items() if not self._lives(cell, now)}
        for path, cell in self._folder.cells.items():
            state = cell.read()
            if state is not None and path not in self._dead:
                yield state

    def _lives(self, cell: EngineCell, now_ns: int) -> bool:
        state = cell.read()
        return self._folder.is_alive(cell.header.writer, state.written_ns if state is not None else now_ns, now_ns)

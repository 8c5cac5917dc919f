"""`prefix.dir`: which endpoint has which prompt prefix, shared by all picker workers and warm across restarts.

A set-associative table, like a CPU cache: `sets` x 8 ways. Each way holds a 32-bit tag (the set index comes from the
other half of the 64-bit hash), a time of last use and one bit per endpoint row. A prompt is cut into blocks whose
hashes are cumulative (xxh3, seeded by a random key of this directory), so block i matches only where blocks 0..i-1 are
the same too. Memory is bounded by construction and no Python object is made per block.

    fields of the kind PFXD, from byte 128
      128 u64 key (random)   136 u64 sets   144 u32 endpoint_capacity   148 u32 reserved
      152 u64 lookups   160 u64 lookup_hits   168 u64 blocks   176 u64 blocks_hit   184 u64 inserts   192 u64 evictions
    then, each array starting on a 64-byte boundary:
      rows      endpoint_capacity x 32 bytes: u32 generation, u32 horizon, u64 capacity (blocks, 0 = unbounded),
                u64 inserted (blocks ever), u64 reserved
      marks     endpoint_capacity x 16 u32: ring of times, one per sixteenth of the capacity inserted
      tags      sets x 8 u32, 0 = empty
      used      sets x 8 u32, time of last use
      masks     sets x 8 x words u64, bit r = endpoint row r

Many writers, no lock: an entry validates itself (tag, generation of the row), the mask is emptied before its tag
changes, and a race between two workers can at worst lose an insert or a count.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash

from .header import HEADER_BYTES
from .prefixtable import I32, WAYS, Located, PrefixTable
from .sharedfile import open_or_create

__all__ = ["DEFAULT_ENTRIES", "FILE_NAME", "PrefixDirectory", "PrefixStats"]

FILE_NAME: Final = "prefix.dir"
KIND: Final = b"PFXD"
VERSION: Final = 1
DEFAULT_ENTRIES: Final = 262_144
#: unit of the times of last use; 2**32 of them are 1.4 years
_TICK_NS: Final = 10_000_000
_MARKS: Final = 16
#: Rows that hold the same blocks, up to which a plain loop is faster than numpy.
_FEW: Final = 16
_SPECIFIC: Final = struct.Struct("<QQII")
_STATS: Final = ("lookups", "lookup_hits", "blocks", "blocks_hit", "inserts", "evictions")
_ROW_BYTES: Final = 32


class PrefixStats(NamedTuple):
    """Size and use of a directory; counters are since it was created and may miss a few of a race."""

    entries: int
    capacity: int
    size_bytes: int
    lookups: int
    lookup_hits: int
    blocks: int
    blocks_hit: int
    inserts: int
    evictions: int


def _align(size: int) -> int:
    return -(-size // 64) * 64


class _Places:
    """Offsets of the arrays and the file's size."""

    def __init__(self, sets: int, endpoint_capacity: int) -> None:
        words = -(-endpoint_capacity // 64)
        self.words = words
        self.rows = HEADER_BYTES
        self.marks = _align(self.rows + endpoint_capacity * _ROW_BYTES)
        self.tags = _align(self.marks + endpoint_capacity * _MARKS * 4)
        self.used = _align(self.tags + sets * WAYS * 4)
        self.masks = _align(self.used + sets * WAYS * 4)
        self.size = _align(self.masks + sets * WAYS * words * 8)


class PrefixDirectory:
    """Opens the directory of a shm directory, or creates it when it is absent, of another shape or of another boot.

    Raises: SnapshotError when it cannot be created.
    """

    def __init__(
        self,
        shm_dir: Path,
        *,
        entries: int = DEFAULT_ENTRIES,
        endpoint_capacity: int = 256,
        mode: int = 0o640,
        group: str | None = None,
    ) -> None:
        self.path: Final = shm_dir / FILE_NAME
        self.sets: Final = max(1, -(-entries // WAYS))
        self.endpoint_capacity: Final = endpoint_capacity
        places = self._places = _Places(self.sets, endpoint_capacity)
        shape = (self.sets, endpoint_capacity)
        self._map = open_or_create(
            self.path, KIND, VERSION, places.size,
            specific=lambda: _SPECIFIC.pack(secrets.randbits(64), *shape, 0),
            fits=lambda mapped: _SPECIFIC.unpack_from(mapped, 128)[1:3] == shape,
            mode=mode, group=group,
        )  # fmt: skip
        whole = memoryview(self._map)
        self._stats = whole[152 : 152 + 8 * len(_STATS)].cast("Q")
        self._key: int = _SPECIFIC.unpack_from(self._map, 128)[0]
        rows = whole[places.rows : places.rows + endpoint_capacity * _ROW_BYTES]
        self._row_words, self._row_longs = rows.cast("I"), rows.cast("Q")
        self._horizons = np.frombuffer(rows, "<u4")[1 :: _ROW_BYTES // 4]
        self._marks = whole[places.marks : places.marks + endpoint_capacity * _MARKS * 4].cast("I")
        self._table = PrefixTable(self._map, self.sets, places.words, places.tags, places.used, places.masks)
        self._located: Located | None = None

    def hash_blocks(self, domain: bytes, text: bytes, block_bytes: int, limit: int = 2048) -> list[int]:
        """Cumulative hashes of the full blocks of `text`, at most `limit` of them; the unfilled last block is left out.

        `domain` separates what must never match (model, adapter, cache salt), tagged and length-prefixed by the caller.
        """
        digest = xxhash.xxh3_64_intdigest
        seed = digest(domain, self._key)
        count = min(len(text) // block_bytes, limit)
        out = []
        view = memoryview(text)
        for start in range(0, count * block_bytes, block_bytes):
            seed = digest(view[start : start + block_bytes], seed)
            out.append(seed)
        return out

    def match(self, hashes: Sequence[int]) -> I32:
        """Leading blocks that each endpoint row holds: int32, `endpoint_capacity` long, 0..len(hashes)."""
        matched = np.zeros(self.endpoint_capacity, np.int32)
        for row, held in self.holders(hashes).items():
            matched[row] = held
        return matched

    def holders(self, hashes: Sequence[int]) -> dict[int, int]:
        """Leading blocks by endpoint row, 1..len(hashes); a row that holds none of them is left out.

        A row's blocks older than its capacity allows (see `set_capacity`) do not count. The place of the blocks is
        kept for an `insert` of the same list right after.
        """
        found: dict[int, int] = {}
        if not hashes:
            return found
        located = self._located = self._table.locate(hashes)
        words = self._row_words
        for bits, depth in located.drops:
            if bits.bit_count() > _FEW:
                self._add_many(found, bits, located.slots[:depth])
                continue
            while bits:
                row = (bits & -bits).bit_length() - 1
                bits &= bits - 1
                horizon = words[row * 8 + 1]
                held = self._newer(located.slots[:depth], horizon) if horizon else depth
                if held:
                    found[row] = held
        stats = self._stats
        stats[0] += 1
        stats[2] += len(hashes)
        if found:
            stats[1] += 1
            stats[3] += max(found.values())
        return found

    def _newer(self, slots: Any, horizon: int) -> int:
        """How many of the leading `slots` were used at `horizon` or later."""
        if isinstance(slots, list):
            used = self._table.used_view
            for count, slot in enumerate(slots):
                if used[slot] < horizon:
                    return count
            return len(slots)
        old = self._table.used[slots] < horizon
        return int(old.argmax()) if old.any() else len(slots)

    def _add_many(self, found: dict[int, int], bits: int, slots: Any) -> None:
        """The same for many rows that hold the same blocks, as with a system prompt that all endpoints have seen."""
        mask = np.frombuffer(bits.to_bytes(8 * self._places.words, "little"), np.uint8)
        rows = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        horizons = self._horizons[rows]
        if not horizons.any():
            found.update(dict.fromkeys(rows.tolist(), len(slots)))
            return
        # The least time of use so far never grows, so that it can be searched from its end.
        least = np.minimum.accumulate(self._table.used[np.asarray(slots)])
        held = len(slots) - np.searchsorted(least[::-1], horizons, side="left")
        found.update((row, count) for row, count in zip(rows.tolist(), held.tolist(), strict=True) if count)

    def insert(self, hashes: Sequence[int], row: int, generation: int, now_ns: int | None = None) -> None:
        """Note that the endpoint at `row` will hold these blocks; call it at dispatch.

        A row that has a newer generation in the directory is left alone (a late insert must not revive a dead
        endpoint); a row with an older one is cleared first. A full set gives up its least recently used way.
        """
        if not hashes or not 0 <= row < self.endpoint_capacity:
            return
        known = self._row_words[row * 8]
        if known > generation:
            return
        if known < generation:
            self.clear(row, generation)
        now = max(1, (time.monotonic_ns() if now_ns is None else now_ns) // _TICK_NS)
        located = self._located
        if located is None or located.hashes is not hashes:
            located = self._table.locate(hashes)
        self._located = None
        added, evicted = self._table.note(located, row, now)
        self._stats[4] += 1
        self._stats[5] += evicted
        self._age(row, added, now)

    def _age(self, row: int, blocks: int, now: int) -> None:
        """Advance the row's horizon: blocks used before it no longer fit the endpoint's own cache."""
        longs = self._row_longs
        before = longs[row * 4 + 2]
        longs[row * 4 + 2] = before + blocks
        capacity = longs[row * 4 + 1]
        if capacity == 0 or blocks == 0:
            return
        step = max(capacity // _MARKS, 1)
        first, last = before // step + 1, (before + blocks) // step
        for mark in range(max(first, last - _MARKS + 1), last + 1):
            slot = row * _MARKS + mark % _MARKS
            if mark > _MARKS:
                self._row_words[row * 8 + 1] = self._marks[slot]
            self._marks[slot] = now

    def set_capacity(self, row: int, blocks: int) -> None:
        """Blocks of this directory that fit the endpoint's KV cache; 0 = unbounded. Cheap: call it on every change."""
        if 0 <= row < self.endpoint_capacity and self._row_longs[row * 4 + 1] != blocks:
            self._row_longs[row * 4 + 1] = blocks
            self._row_longs[row * 4 + 2] = 0
            self._row_words[row * 8 + 1] = 0

    def generation(self, row: int) -> int:
        """The generation of the endpoint whose bits this row holds; 0 = none."""
        return int(self._row_words[row * 8]) if 0 <= row < self.endpoint_capacity else 0

    def clear(self, row: int, generation: int | None = None) -> None:
        """Forget a row (all bits), and with `generation` give it to a new endpoint. About 2 ms per million entries."""
        if not 0 <= row < self.endpoint_capacity:
            return
        if self._row_words[row * 8]:  # a row that never had an endpoint has no bits to clear
            self._table.forget(row)
        self._row_words[row * 8 + 1] = 0
        self._row_longs[row * 4 + 2] = 0
        for slot in range(row * _MARKS, (row + 1) * _MARKS):
            self._marks[slot] = 0
        if generation is not None:
            self._row_words[row * 8] = generation

    def hottest(self, count: int) -> list[tuple[int, int, list[int]]]:
        """The most recently used entries: (tag, age of last use in ms, endpoint rows). Hashes, never text."""
        table = self._table
        occupied = np.flatnonzero(table.tags)
        order = occupied[np.argsort(table.used[occupied])[::-1][:count]]
        now = time.monotonic_ns() // _TICK_NS
        found = []
        for index in order.tolist():
            bits = np.unpackbits(table.masks[index].view(np.uint8), bitorder="little")[: self.endpoint_capacity]
            age_ms = max(now - int(table.used[index]), 0) * _TICK_NS // 1_000_000
            found.append((int(table.tags[index]), age_ms, np.flatnonzero(bits).tolist()))
        return found

    def stats(self) -> PrefixStats:
        """Size and counters."""
        return PrefixStats(int(np.count_nonzero(self._table.tags)), self.sets * WAYS, self._places.size, *self._stats)

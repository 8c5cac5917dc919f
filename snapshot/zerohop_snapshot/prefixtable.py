"""The set-associative table inside `prefix.dir`: look up and note the blocks of one prompt.

A block is found in two ways that give the same answer: short prompts (up to SHORT blocks) walk plain memory views,
about 1 us per block and no array made; longer ones use numpy, whose fixed cost of about 40 us then pays off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["I32", "SHORT", "U64", "WAYS", "Located", "PrefixTable"]

U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]

WAYS: Final = 8
#: longest prompt, in blocks, that the plain walk handles faster than numpy
SHORT: Final = 24
_LOW: Final = 0xFFFF_FFFF


class Located:
    """Where one prompt's leading blocks were found: kept between the look-up and the insert of one request.

    `slots` are entry indices (set x 8 + way) of the leading blocks that some endpoint holds, in order.
    """

    __slots__ = ("drops", "hashes", "slots")

    def __init__(
        self, hashes: Sequence[int], slots: list[int] | npt.NDArray[np.int64], drops: list[tuple[int, int]]
    ) -> None:
        self.hashes = hashes
        self.slots = slots
        #: (bits, blocks): these endpoints hold exactly that many leading blocks
        self.drops = drops


class PrefixTable:
    """Views of one table: tags, times of last use, and masks of `words` 64-bit words per entry."""

    def __init__(self, memory: Any, sets: int, words: int, tags: int, used: int, masks: int) -> None:
        entries = sets * WAYS
        self._sets: Final = sets
        self._words: Final = words
        whole = memoryview(memory)
        self._tag_view = whole[tags : tags + 4 * entries].cast("I")
        self.used_view: Final = whole[used : used + 4 * entries].cast("I")
        self._mask_bytes = whole[masks : masks + 8 * words * entries]
        self._mask_view = self._mask_bytes.cast("Q")
        self.tags: Final = np.frombuffer(memory, "<u4", entries, tags)
        self.used: Final = np.frombuffer(memory, "<u4", entries, used)
        self.masks: Final = np.frombuffer(memory, "<u8", entries * words, masks).reshape(entries, words)
        self._zeros: Final = bytes(8 * words)

    def locate(self, hashes: Sequence[int]) -> Located:
        """Find the leading blocks that are in the table, and who holds how many of them."""
        return self._walk(hashes) if len(hashes) <= SHORT else self._gather(hashes)

    def _walk(self, hashes: Sequence[int]) -> Located:
        sets, tags, mask_bytes, size = self._sets, self._tag_view, self._mask_bytes, 8 * self._words
        slots: list[int] = []
        drops: list[tuple[int, int]] = []
        holders = -1
        for depth, value in enumerate(hashes):
            base = ((value >> 32) * sets >> 32) * WAYS
            try:
                slot = base + tags[base : base + WAYS].tolist().index(value & _LOW or 1)
            except ValueError:
                break
            mask = int.from_bytes(mask_bytes[slot * size : slot * size + size], "little") & holders
            if mask != holders and holders > 0:
                drops.append((holders & ~mask, depth))
            holders = mask
            if not mask:
                break
            slots.append(slot)
        if holders > 0:
            drops.append((holders, len(slots)))
        return Located(hashes, slots, drops)

    def _gather(self, hashes: Sequence[int]) -> Located:
        base, tags = self._places(np.array(hashes, np.uint64))
        hit = self.tags.reshape(-1, WAYS)[base] == tags[:, None]
        found = hit.any(axis=1)
        leading = len(hashes) if found.all() else int(found.argmin())
        if leading == 0:
            return Located(hashes, [], [])
        slots = base[:leading] * WAYS + hit[:leading].argmax(axis=1)
        masks = self.masks[slots]
        drops: list[tuple[int, int]] = []
        holders, start = masks[0], 0
        while True:
            before = int.from_bytes(holders.tobytes(), "little")
            lacking = ((masks[start:] & holders) != holders).any(axis=1)
            step = int(lacking.argmax())
            if not before or not lacking[step]:
                break
            start += step
            holders = holders & masks[start]
            drops.append((before & ~int.from_bytes(holders.tobytes(), "little"), start))
        depth = leading if before else start
        if before:
            drops.append((before, depth))
        return Located(hashes, slots[:depth], drops)

    def _places(self, hashes: U64) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
        """Set index (from the high half of the hash) and tag (its low half, never 0) of each block."""
        sets = ((hashes >> np.uint64(32)) * np.uint64(self._sets) >> np.uint64(32)).astype(np.int64)
        tags = hashes.astype(np.uint32)
        if not tags.all():
            tags[tags == 0] = 1
        return sets, tags

    def note(self, located: Located, row: int, now: int) -> tuple[int, int]:
        """Set the row's bit on every block; returns (blocks that the row did not hold before, entries given up).

        `now` is the time of last use for the first block; each later one is a tick older, so that the tail of a
        prompt is given up before its head and what remains can still be matched.
        """
        if len(located.hashes) - len(located.slots) <= SHORT:
            return self._note_walk(located, row, now)
        return self._note_gather(located, row, now)

    def _note_walk(self, located: Located, row: int, now: int) -> tuple[int, int]:
        masks, words = self._mask_view, self._words
        word, bit = row >> 6, 1 << (row & 63)
        leading = len(located.slots)
        if leading > SHORT:
            slots = np.asarray(located.slots)
            held = self.masks[slots, word]
            added = leading - int(np.count_nonzero(held & np.uint64(bit)))
            self.masks[slots, word] = held | np.uint64(bit)
            self.used[slots] = np.maximum(np.int64(now) - np.arange(leading, dtype=np.int64), 1)
        else:
            used, added = self.used_view, 0
            for depth, slot in enumerate(located.slots):
                place = slot * words + word
                if not masks[place] & bit:
                    masks[place] |= bit
                    added += 1
                used[slot] = now - depth if now > depth else 1
            if leading == len(located.hashes):
                return added, 0
        rest, evicted = self._put(enumerate(located.hashes[leading:], leading), row, now)
        return added + rest, evicted

    def _put(self, blocks: Iterable[tuple[int, int]], row: int, now: int) -> tuple[int, int]:
        """Note (depth, hash) blocks one after another."""
        tags, used, masks, words, sets = self._tag_view, self.used_view, self._mask_view, self._words, self._sets
        word, bit, size = row >> 6, 1 << (row & 63), 8 * self._words
        added = evicted = 0
        for depth, value in blocks:
            base = ((value >> 32) * sets >> 32) * WAYS
            tag = value & _LOW or 1
            ways = tags[base : base + WAYS].tolist()
            if tag in ways:
                slot = base + ways.index(tag)
            else:
                if 0 in ways:
                    slot = base + ways.index(0)
                else:
                    times = used[base : base + WAYS].tolist()
                    slot = base + times.index(min(times))
                    evicted += 1
                self._mask_bytes[slot * size : slot * size + size] = self._zeros
                tags[slot] = tag
            place = slot * words + word
            if not masks[place] & bit:
                masks[place] |= bit
                added += 1
            used[slot] = max(now - depth, 1)
        return added, evicted

    def _note_gather(self, located: Located, row: int, now: int) -> tuple[int, int]:
        base, tags = self._places(np.array(located.hashes, np.uint64))
        current = self.tags.reshape(-1, WAYS)[base]
        hit = current == tags[:, None]
        found = hit.any(axis=1)
        times = self.used.reshape(-1, WAYS)[base]
        times[current == 0] = 0
        slots = base * WAYS + np.where(found, hit.argmax(axis=1), times.argmin(axis=1))
        new = ~found
        fresh = slots[new]
        evicted = int(np.count_nonzero(self.tags[fresh]))
        bit = np.uint64(1 << (row & 63))
        held = int(np.count_nonzero(self.masks[slots[found], row >> 6] & bit))
        self.masks[fresh] = 0
        self.tags[fresh] = tags[new]
        # Two blocks of one prompt may have chosen one way (220 blocks in 32,768 sets: every other prompt). The ones
        # that lost it are noted again, one by one; without this the chain would break there for good.
        lost = np.flatnonzero(self.tags[slots] != tags)
        self.masks[slots, row >> 6] |= bit
        self.used[slots] = np.maximum(np.int64(now) - np.arange(len(slots), dtype=np.int64), 1)
        again = self._put(((depth, located.hashes[depth]) for depth in lost.tolist()), row, now)
        return len(slots) - held, evicted + again[1]

    def forget(self, row: int) -> None:
        """Clear the row's bit everywhere; about 2 ms per million entries."""
        self.masks[:, row >> 6] &= np.uint64(~(1 << (row & 63)) & 0xFFFF_FFFF_FFFF_FFFF)

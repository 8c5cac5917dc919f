"""Which prompt blocks an engine still holds: a least-recently-used set of cumulative block hashes."""

from __future__ import annotations

from collections import OrderedDict

#: bytes of prompt text that stand for one token
BYTES_PER_TOKEN = 4


class PrefixCache:
    """Up to `capacity_blocks` blocks of `block_size` tokens. A block counts as cached with all blocks before it."""

    def __init__(self, capacity_blocks: int, block_size: int) -> None:
        self._capacity = capacity_blocks
        self._block_bytes = block_size * BYTES_PER_TOKEN
        self._block_size = block_size
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, domain: str, prompt: bytes) -> int:
        """Return how many tokens at the start of `prompt` are cached, in whole blocks and never the last token's block.

        `domain` (model and adapter) separates prompts whose key-value entries differ. The matched blocks become the
        youngest ones, and the missing ones are added.
        """
        hashes = self._hashes(domain, prompt)
        matched = 0
        for block in hashes:
            if block not in self._blocks:
                break
            matched += 1
        for block in hashes:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        whole = max(0, (len(prompt) - 1) // self._block_bytes)
        return min(matched, whole) * self._block_size

    def clear(self) -> None:
        """Forget everything (a restart or a sleep)."""
        self._blocks.clear()

    def _hashes(self, domain: str, prompt: bytes) -> list[int]:
        size, state, hashes = self._block_bytes, hash(domain), []
        for start in range(0, len(prompt) - size + 1, size):
            state = hash((state, prompt[start : start + size]))
            hashes.append(state)
        return hashes

"""Which endpoint has served which prompt prefix: how this worker asks the shared directory, and what it tells it.

A prompt's canonical text is cut into blocks and hashed cumulatively, so equal hashes mean equal prefixes. The model,
the adapter and the cache salt enter first, each tagged and with its length in front: no prompt can imitate another
domain. Entries are written at dispatch, because the next request of a conversation may arrive before the first ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from zerohop_picker.request.model import LLMRequest
from zerohop_picker.state.names import Names
from zerohop_picker.state.view import View

BYTES_PER_TOKEN: Final = 4
#: Smallest block by default: 1 kB of text is a fraction of a millisecond of prefill, and 220 kB are 220 blocks.
DEFAULT_BLOCK_BYTES: Final = 1024
#: The field raises smaller settings to 64 tokens, too.
SMALLEST_BLOCK_TOKENS: Final = 64
#: Salts are often one per user: more than this many are not remembered.
_DOMAINS_KEPT: Final = 1024


class DirectoryStats(Protocol):
    """What is needed of ``zerohop_snapshot.prefix.PrefixStats``."""

    @property
    def entries(self) -> int: ...  # noqa: D102


class Directory(Protocol):
    """What is needed of ``zerohop_snapshot.prefix.PrefixDirectory``."""

    def hash_blocks(self, domain: bytes, text: bytes, block_bytes: int, limit: int) -> Sequence[int]: ...  # noqa: D102

    def holders(self, hashes: Sequence[int]) -> Mapping[int, int]: ...  # noqa: D102

    def insert(self, hashes: Sequence[int], row: int, generation: int, now_ns: int) -> object: ...  # noqa: D102

    def set_capacity(self, row: int, blocks: int) -> None: ...  # noqa: D102

    def generation(self, row: int) -> int: ...  # noqa: D102

    def stats(self) -> DirectoryStats: ...  # noqa: D102

    def clear(self, row: int, generation: int | None = None) -> None: ...  # noqa: D102


class PrefixSettings(NamedTuple):
    """How prompts are cut; see ``approx-prefix-cache-producer``."""

    auto_tune: bool = True
    block_size_tokens: int = 16
    max_blocks: int = 2048
    max_tokens: int = 131_072
    capacity_blocks: int = 31_250

    def block_bytes(self, names: Names) -> int:
        """Return the block size in bytes for the endpoints that ``names`` lists.

        With auto-tuning: the least power of two that holds a whole KV block of every engine, and at least 1 kB.
        """
        if not self.auto_tune:
            return max(self.block_size_tokens, SMALLEST_BLOCK_TOKENS) * BYTES_PER_TOKEN
        largest = float(np.nanmax(names.block_size, initial=0.0)) if np.isfinite(names.block_size).any() else 0.0
        wanted = largest * BYTES_PER_TOKEN
        return DEFAULT_BLOCK_BYTES if wanted <= DEFAULT_BLOCK_BYTES else 1 << math.ceil(math.log2(wanted))


class Lookup:
    """What the directory knew of one prompt, which has ``blocks`` full blocks of ``block_bytes`` each.

    ``depths`` has the leading blocks, 1..blocks, of each row that holds any: a few of many. ``longest`` is the most.
    """

    __slots__ = ("block_bytes", "blocks", "depths", "hashes", "longest")

    def __init__(self, hashes: Sequence[int], block_bytes: int, depths: Mapping[int, int]) -> None:
        """Take what the directory said."""
        self.hashes = hashes
        self.blocks = len(hashes)
        self.block_bytes = block_bytes
        self.depths = depths
        self.longest = max(depths.values()) if depths else 0


class PrefixUse:
    """Asks the directory about prompts and tells it about dispatches."""

    def __init__(self, directory: Directory, settings: PrefixSettings | None = None) -> None:
        """Use ``directory`` with ``settings``."""
        self._directory = directory
        self._settings = settings or PrefixSettings()
        self._names = Names({}, 0)
        self._domains: dict[tuple[str | None, str | None], bytes] = {}
        self._block_bytes = DEFAULT_BLOCK_BYTES
        self._limit = 0
        self._present: set[int] = set()
        #: Totals for the metrics: prompts looked up, blocks looked up, blocks that some endpoint had.
        self.lookups = self.blocks_seen = self.blocks_matched = 0

    def configure(self, settings: PrefixSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings
        self._names = Names({}, 0)

    def look_up(self, llm: LLMRequest, model: str | None, view: View) -> Lookup | None:
        """Return what is known of the prompt of ``llm``; None when it has no full block."""
        if llm.body is None:
            return None
        text = llm.canonical_prompt()
        names = view.names
        if names is not self._names:
            self._names = names
            self._domains.clear()
            size = self._block_bytes = self._settings.block_bytes(names)
            self._limit = min(self._settings.max_blocks, max(1, self._settings.max_tokens * BYTES_PER_TOKEN // size))
            self._follow(view)
        size = self._block_bytes
        if len(text) < size:
            return None
        hashes = self._directory.hash_blocks(self._domain(model, llm.cache_salt), text, size, self._limit)
        lookup = Lookup(hashes, size, self._directory.holders(hashes))
        self.lookups += 1
        self.blocks_seen += lookup.blocks
        self.blocks_matched += lookup.longest
        return lookup

    def _domain(self, model: str | None, salt: str | None) -> bytes:
        key = (model, salt)
        found = self._domains.get(key)
        if found is None:
            if len(self._domains) >= _DOMAINS_KEPT:
                self._domains.clear()
            found = self._domains[key] = domain(model, self._names, salt)
        return found

    def _follow(self, view: View) -> None:
        """Give rows that changed hands to their new endpoints, empty those that were left, and set capacities."""
        used = view.membership.used
        generations = view.membership.generations.tolist()
        tokens = view.names.num_blocks * view.names.block_size
        for row in range(view.rows):
            held = self._directory.generation(row)
            if not used[row]:
                if held and row in self._present:
                    self._directory.clear(row)
                    self._present.discard(row)
                continue
            self._present.add(row)
            if 0 < held < generations[row]:
                self._directory.clear(row, generations[row])
            blocks = self._settings.capacity_blocks
            if self._settings.auto_tune and tokens[row] == tokens[row]:
                blocks = max(1, int(tokens[row] * BYTES_PER_TOKEN / self._block_bytes))
            self._directory.set_capacity(row, blocks)

    def entries(self) -> int:
        """Return how many blocks the directory holds; a fraction of a millisecond, for the metrics page."""
        return self._directory.stats().entries

    def dispatched(self, lookup: Lookup, row: int, generation: int, now_ns: int) -> None:
        """Note that the prompt goes to ``row`` now."""
        self._directory.insert(lookup.hashes, row, generation, now_ns)


def domain(model: str | None, names: Names, salt: str | None) -> bytes:
    """Return the bytes that set prompts of one model, adapter and cache salt apart from all others."""
    adapter = model if model in names.adapters else None
    parts = []
    for tag, value in ((b"m", model), (b"a", adapter), (b"s", salt)):
        encoded = b"" if value is None else value.encode("utf-8", "surrogateescape")
        # A tag of its own for "absent", so that an empty salt is not no salt.
        parts.append((tag.upper() if value is None else tag) + len(encoded).to_bytes(4, "little") + encoded)
    return b"".join(parts)

"""A request body that is held until it can be read whole: what it may cost, and how its chunks are kept."""

from __future__ import annotations

from collections.abc import Mapping

from zerohop_picker.protocol import refusals
from zerohop_picker.protocol.core import ProtocolCore
from zerohop_picker.protocol.errors import PeerError

#: A chunk that is kept as it came costs 250 bytes more than it has. Shorter ones are put together, or an upload of
#: single bytes would take 250 times what is counted.
_SMALL_BYTES = 2048


class HeldBody:
    """The chunks of one body, where they were received. `size_bytes` of them count against the caps of the core."""

    __slots__ = ("_chunks", "_core", "size_bytes")

    def __init__(self, core: ProtocolCore):
        self._core = core
        self._chunks: list[memoryview | bytearray] = []
        self.size_bytes = 0

    def add(self, data: memoryview) -> None:
        """Holds one more chunk.

        Raises:
            PeerError: 413 for a body that is too long, 503 when all streams together hold too much.
        """
        size = len(data)
        if not size:
            return
        settings, counters = self._core.settings, self._core.counters
        if self.size_bytes + size > settings.max_request_bytes:
            raise PeerError(refusals.too_large(settings.max_request_bytes))
        if counters.held_bytes + size > settings.max_held_bytes:
            raise PeerError(refusals.HELD_TOO_MUCH)
        self.size_bytes += size
        counters.held_bytes += size
        chunks = self._chunks
        if size >= _SMALL_BYTES:
            chunks.append(data)  # it stays where it was received
        elif chunks and isinstance(chunks[-1], bytearray):
            chunks[-1] += data
        else:
            chunks.append(bytearray(data))

    def joined(self) -> bytes:
        """What is held, in one piece."""
        return b"".join(self._chunks)

    def release(self) -> None:
        """Lets go of it. Idempotent."""
        self._core.counters.held_bytes -= self.size_bytes
        self.size_bytes = 0
        self._chunks = []


def check_announced_size(headers: Mapping[str, str], limit_bytes: int) -> None:
    """Looks at `content-length` before the first byte comes.

    Raises:
        PeerError: 413 when it is larger than `limit_bytes`.
    """
    text = headers.get("content-length", "")
    if len(text) < 7:
        return  # below a megabyte; a smaller limit is checked as the bytes come
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) > limit_bytes:
        raise PeerError(refusals.too_large(limit_bytes))

"""gRPC message framing: a flag byte, four bytes of length, the message. Without I/O.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

PREFIX_BYTES = 5
LARGE_BYTES = 16 * 1024
MANY_CHUNKS = 256


class FramingError(Exception):
    """The byte stream of one call cannot be read any further.

    Attributes:
        status: gRPC status code that says why.
        announced_bytes: length that a too large message announced, else 0.
    """

    def __init__(self, status: int, message: str, announced_bytes: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.announced_bytes = announced_bytes


class MessageReader:
    """Cuts the bytes of one call into messages, each copied once: by a slice or by a join.

    `held_bytes` is what waits here for the rest of its message.
    """

    __slots__ = ("_chunks", "_length", "_limit_bytes", "held_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._chunks: list[bytes] = []
        self._length = -1  # of the message being collected; -1 while its prefix is incomplete
        self.held_bytes = 0

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Take the next bytes of the call and return the messages they complete, in order.

        Raises:
            FramingError: a compressed message, or one larger than the limit.
        """
        messages: list[bytes] = []
        if self.held_bytes or self._length >= 0:
            self._chunks.append(data)
            self.held_bytes += len(data)
            while self._step(messages):
                pass
            self._compact()
            return messages
        start, size = 0, len(data)
        while size - start >= PREFIX_BYTES:
            end = start + PREFIX_BYTES + self._length_bytes(data, start)
            if end > size:
                break
            messages.append(data[start + PREFIX_BYTES : end])
            start = end
        if start < size:
            self._keep(data[start:] if start else data)
            self._step(messages)
        return messages

    def _compact(self) -> None:
        if len(self._chunks) > MANY_CHUNKS and self.held_bytes < MANY_CHUNKS * len(self._chunks):
            # A peer that drips single bytes would otherwise cost forty times what it sent.
            self._chunks = [b"".join(self._chunks)]

    def _step(self, messages: list[bytes]) -> bool:
        """Read one prefix or one message; return whether there may be more to read."""
        if self._length < 0:
            if self.held_bytes < PREFIX_BYTES:
                return False
            whole = self._joined()
            self._length = self._length_bytes(whole)
            self._keep(whole[PREFIX_BYTES:])
        if self.held_bytes < self._length:
            return False
        whole = self._joined()
        if len(whole) == self._length:
            messages.append(whole)
            self._keep(b"")
        else:
            messages.append(whole[: self._length])
            self._keep(whole[self._length :])
        self._length = -1
        return self.held_bytes >= PREFIX_BYTES

    def _joined(self) -> bytes:
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def _keep(self, rest: bytes) -> None:
        self._chunks = [rest] if rest else []
        self.held_bytes = len(rest)

    def _length_bytes(self, data: bytes, start: int = 0) -> int:
        if data[start]:
            raise FramingError(12, "compressed messages are not supported")
        length = int.from_bytes(data[start + 1 : start + PREFIX_BYTES], "big")
        if length > self._limit_bytes:
            raise FramingError(
                8, f"message of {length} bytes is larger than the limit of {self._limit_bytes} bytes", length
            )
        return length


def frame(messages: Iterable[bytes]) -> list[bytes]:
    """Return the framed bytes of `messages`: small ones joined into one piece, large ones kept apart to save a copy."""
    pieces: list[bytes] = []
    small: list[bytes] = []
    for message in messages:
        prefix = b"\x00" + len(message).to_bytes(4, "big")
        small.append(prefix)
        if len(message) < LARGE_BYTES:
            small.append(message)
            continue
        pieces.append(b"".join(small))
        pieces.append(message)
        small = []
    if small:
        pieces.append(b"".join(small))
    return pieces

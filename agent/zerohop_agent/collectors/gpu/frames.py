"""Messages between the agent and its NVML child: a 4-byte little-endian length, then one msgpack map.

From the child, by `t`: `starting`; `boards` (boards, driver, ns); `read` (gpus: UUID to reading); `xid` (uuid,
code, ns); `end` (state, code, text), the last one before it exits. To the child: nothing; it ends with its input.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack

_LENGTH = struct.Struct("<I")
#: Far above what any number of boards needs; more means that something else writes to the pipe.
MAX_FRAME_BYTES = 4 << 20


def encode(message: dict[str, Any]) -> bytes:
    """One message, ready to be written."""
    body: bytes = msgpack.packb(message)
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Cuts a byte stream into messages. Raises: ValueError when the bytes are not from a child of ours."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are complete now."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            message = msgpack.unpackb(bytes(self._buffer[_LENGTH.size : end]))
            if not isinstance(message, dict):
                raise ValueError("not a map")  # noqa: TRY004 - the bytes are wrong, not a type of ours
            messages.append(message)
            del self._buffer[:end]
        return messages

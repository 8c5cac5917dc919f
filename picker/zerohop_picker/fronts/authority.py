"""Lets gateways in whose cluster names are no host names.

Envoy sends the name of the picker's cluster as `:authority`: Istio's is `outbound|9002||zerohop.ns.svc.cluster.local`,
Envoy Gateway's has slashes. libnghttp2 checks an authority as a URI has it, resets every such stream with
PROTOCOL_ERROR, and its binding has no way to switch that off. So those characters are replaced by dots before it sees
them.

The bytes are HPACK. A literal authority is replaced by another of the same decoded length, so the dynamic tables of
both sides keep the same size and order, and every later reference by index stays right. A connection whose first
authority is fine is not looked at again. Sans-IO; about 1 us per frame while it looks.

Source: RFC 7541 (representations in section 6, integers 5.1, strings 5.2, Huffman code appendix B), RFC 9113 4.1, 6.2.
"""

from __future__ import annotations

from typing import Final

_PREFACE_BYTES: Final = 24
_HEAD_BYTES: Final = 9
_HEADERS: Final = 1
_END_HEADERS: Final = 0x4
_PADDED: Final = 0x8
_PRIORITY: Final = 0x20
#: Larger header blocks are not looked at: gRPC's have a few hundred bytes.
_MOST_BLOCK_BYTES: Final = 16_000
_AUTHORITY_INDEX: Final = 1
_ALLOWED: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:[]%"  # libnghttp2's, without @
)
_DOT: Final = ord(".")
_FINE: Final = b"fine"

#: Printable characters in the Huffman code: bits, first code, characters in the order of their codes.
_HUFFMAN: Final = (
    (5, 0x0, "012aceiost"), (6, 0x14, " %-./3456789=A_bdfghlmnpru"), (7, 0x5C, ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, 0xF8, "&*,;XZ"), (10, 0x3F8, '!"()?'), (11, 0x7FA, "'+|"), (12, 0xFFA, "#>"), (13, 0x1FF9, "$@[]~"),
    (14, 0x3FFC, "^}"), (15, 0x7FFC, "<`{"), (19, 0x7FFF0, "\\"),
)  # fmt: skip
_CODES: Final = {
    (bits, first + place): ord(character)
    for bits, first, characters in _HUFFMAN
    for place, character in enumerate(characters)
}


class AuthorityFilter:
    """What one connection sends, with authorities that libnghttp2 takes. Feed it every byte, in order."""

    __slots__ = ("_held", "_skip", "looking")

    def __init__(self) -> None:
        #: False once the connection's authority is known to be fine: `feed` need not be called any more.
        self.looking = True
        self._held = b""
        self._skip = _PREFACE_BYTES

    def feed(self, data: memoryview | bytes) -> memoryview | bytes:
        """Return the bytes to go on with: `data` itself where nothing changes. Part of a HEADERS frame is held back."""
        if not self.looking:
            return data
        if self._held:
            data = self._held + bytes(data)
            self._held = b""
        size = len(data)
        position = self._skip
        if position >= size:
            self._skip = position - size
            return data
        pieces: list[memoryview | bytes] = []
        begin = 0
        while position < size:
            if size - position < _HEAD_BYTES:
                return self._hold(data, begin, position, pieces)
            length = data[position] << 16 | data[position + 1] << 8 | data[position + 2]
            end = position + _HEAD_BYTES + length
            if data[position + 3] == _HEADERS and data[position + 4] & _END_HEADERS and length <= _MOST_BLOCK_BYTES:
                if end > size:
                    return self._hold(data, begin, position, pieces)
                frame = self._frame(bytes(data[position:end]))
                if frame is _FINE:
                    self.looking = False
                    break  # nothing behind this frame may be held back: `feed` may never be called again
                if frame is not None:
                    pieces += (data[begin:position], frame)
                    begin = end
            position = end
        self._skip = position - size
        if not pieces:
            return data
        pieces.append(data[begin:])
        return b"".join(pieces)

    def _hold(
        self, data: memoryview | bytes, begin: int, position: int, pieces: list[memoryview | bytes]
    ) -> memoryview | bytes:
        """Keep what starts at `position` for the next read, and return what is before it."""
        self._held = bytes(data[position:])
        self._skip = 0
        pieces.append(data[begin:position])
        return b"".join(pieces)

    def _frame(self, frame: bytes) -> bytes | None:
        """Return a HEADERS frame in place of `frame`; None where it may stay, `_FINE` where all later ones may, too."""
        flags = frame[4]
        start, end = _HEAD_BYTES, len(frame)
        try:
            if flags & _PADDED:
                end -= frame[start]
                start += 1
            if flags & _PRIORITY:
                start += 5
            found = _literal_authority(frame, start, end)
            if found is None:
                return None
            at, after, value = found
        except (IndexError, ValueError):
            # Not well-formed, or in characters that no authority has: libnghttp2 says so itself.
            return None
        fit = bytes(byte if byte in _ALLOWED else _DOT for byte in value)
        if fit == value:
            return _FINE
        payload = frame[_HEAD_BYTES:at] + _integer(len(fit), 7, 0) + fit + frame[after:]
        return len(payload).to_bytes(3, "big") + frame[3:_HEAD_BYTES] + payload


def _literal_authority(frame: bytes, position: int, end: int) -> tuple[int, int, bytes] | None:
    """Where the value of a literal `:authority` starts and ends in a header block, and the value; None without one.

    Raises: IndexError, ValueError for a block that is not HPACK.
    """
    while position < end:
        first = frame[position]
        if first & 0x80:
            _, position = _read_integer(frame, position, 7)
            continue
        if first & 0xE0 == 0x20:
            _, position = _read_integer(frame, position, 5)
            continue
        index, position = _read_integer(frame, position, 6 if first & 0x40 else 4)
        if index == 0:
            length, position = _read_integer(frame, position, 7)
            position += length
        at = position
        huffman = frame[position] & 0x80
        length, position = _read_integer(frame, position, 7)
        after = position + length
        if after > end:
            raise ValueError("a string is longer than its block")
        if index == _AUTHORITY_INDEX:
            raw = frame[position:after]
            return at, after, _decode(raw) if huffman else raw
        position = after
    return None


def _read_integer(frame: bytes, position: int, prefix: int) -> tuple[int, int]:
    """An integer and the position behind it."""
    most = (1 << prefix) - 1
    value = frame[position] & most
    position += 1
    if value < most:
        return value, position
    shift = 0
    while True:
        byte = frame[position]
        position += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, position
        if shift > 28:
            raise ValueError("an integer is too large")


def _integer(value: int, prefix: int, flags: int) -> bytes:
    most = (1 << prefix) - 1
    if value < most:
        return bytes((flags | value,))
    encoded = bytearray((flags | most,))
    value -= most
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _decode(raw: bytes) -> bytes:
    """Huffman-coded printable text. Raises: ValueError for anything else."""
    decoded = bytearray()
    code = bits = 0
    for byte in raw:
        for place in range(7, -1, -1):
            code = code << 1 | byte >> place & 1
            bits += 1
            character = _CODES.get((bits, code))
            if character is not None:
                decoded.append(character)
                code = bits = 0
            elif bits > 19:
                raise ValueError("a character that is not printable")
    if bits > 7 or code != (1 << bits) - 1:
        raise ValueError("the padding is not the end of the code")
    return bytes(decoded)

"""Protobuf wire format, as far as the hot path needs it by hand.

Bodies: through the protobuf runtime an 8 MB chunk would be copied into its arena and out again. The layout of a body
message is `tag, length, HttpBody, other fields`, and HttpBody has the same layout as the StreamedBodyResponse that
answers it, so an echo is a slice with other lengths around.

Request headers stay in wire form (`request.headers.WireHeaders`). Whatever is not laid out as Envoy does it goes
through the protobuf runtime, with the same result.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_picker.protocol.errors import StreamFault
from zerohop_picker.request.headers import METHOD_PATTERN, WireHeaders

M = TypeVar("M", bound=Message)

# Tags of ProcessingRequest's first fields: (field << 3) | 2.
REQUEST_HEADERS = 0x12
REQUEST_BODY = 0x22
RESPONSE_BODY = 0x2A


class Body:
    """One body message."""

    __slots__ = ("_message", "_start", "_stop", "data", "end")

    def __init__(self, data: memoryview, message: bytes, start: int, stop: int, *, end: bool):
        self.data = data
        self.end = end
        self._message = message
        self._start = start
        self._stop = stop

    @property
    def http_body(self) -> memoryview:
        """The HttpBody as it came, for an echo."""
        return memoryview(self._message)[self._start : self._stop]

    @property
    def rest(self) -> bytes:
        """The fields after it (metadata), b"" mostly."""
        return self._message[self._stop :]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


#: Most lengths are below this: one list access for each.
_LOOKED_UP = 4096
_VARINTS = [_varint(value) for value in range(_LOOKED_UP)]


def varint(value: int) -> bytes:
    """`value` >= 0 as a base-128 varint."""
    return _VARINTS[value] if value < _LOOKED_UP else _varint(value)


def field(tag: int, payload: bytes) -> bytes:
    """A length-delimited field whose tag is one byte."""
    return _VARINTS[tag] + varint(len(payload)) + payload


def read_varint(buffer: bytes | memoryview, at: int) -> tuple[int, int]:
    """(value, position after it).

    Raises:
        IndexError: the buffer ends first.
        StreamFault: longer than 64 bits.
    """
    byte = buffer[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 63:
            raise StreamFault("a varint is longer than 64 bits")


def read_body(message: bytes) -> Body:
    """The body of a message whose first byte is REQUEST_BODY or RESPONSE_BODY.

    Raises:
        StreamFault: the message is cut or malformed.
    """
    try:
        stop = message[1]
        if stop < 0x80:
            start = 2
        else:
            stop, start = read_varint(message, 1)
        stop += start
        if stop > start and message[start] == 0x0A:
            after = message[start + 1]
            if after < 0x80:
                data_start = start + 2
            else:
                after, data_start = read_varint(message, start + 1)
            after += data_start
            data = memoryview(message)[data_start:after]
        else:
            after = start
            data = _NO_DATA
    except IndexError:
        raise StreamFault("a body message is cut") from None
    if after > stop or stop > len(message):
        raise StreamFault("a body message is cut")
    end = _FLAGS.get(message[after:stop])
    if end is None:
        return _any_order(message, start, stop)
    return Body(data, message, start, stop, end=end)


_NO_DATA = memoryview(b"")
#: What follows the data in nearly every message: nothing, or end_of_stream written out.
_FLAGS = {b"": False, b"\x10\x01": True, b"\x10\x00": False}


def _any_order(message: bytes, start: int, stop: int) -> Body:
    """The same by the protobuf runtime: fields in another order, or flags of gRPC messages."""
    parsed = parse(pb.HttpBody, message[start:stop])
    end = parsed.end_of_stream or parsed.end_of_stream_without_message
    return Body(memoryview(parsed.body), message, start, stop, end=end)


class Headers(NamedTuple):
    """The headers of one message."""

    values: WireHeaders
    end: bool
    #: The fields after them: modes, metadata.
    rest: bytes


def read_request_headers(message: bytes) -> Headers | None:
    """The headers of a message whose first byte is REQUEST_HEADERS; None when it is laid out in some other way.

    The order of fields is the one that every protobuf library writes: the header map, end_of_stream, then what follows.
    """
    try:
        size, start = read_varint(message, 1)
        stop = start + size
        if stop > len(message) or message[start] != 0x0A:
            return None
        size, start = read_varint(message, start + 1)
    except IndexError:
        return None
    map_stop = start + size
    block = message[start:map_stop]
    end = _HEADER_FLAGS.get(message[map_stop:stop])
    if end is None or METHOD_PATTERN not in block:
        return None
    return Headers(WireHeaders(block), end, message[stop:])


#: What follows the header map: nothing, or end_of_stream (field 3).
_HEADER_FLAGS = {b"": False, b"\x18\x01": True, b"\x18\x00": False}


def body_of(parsed: pb.HttpBody) -> Body:
    """A body that the protobuf runtime has parsed with the whole message."""
    message = parsed.SerializeToString()
    return _any_order(message, 0, len(message))


def parse(kind: type[M], data: bytes | memoryview) -> M:
    """A message of the protobuf runtime.

    Raises:
        StreamFault: not such a message.
    """
    try:
        return kind.FromString(bytes(data))
    except DecodeError:
        raise StreamFault("a message is not a ProcessingRequest") from None

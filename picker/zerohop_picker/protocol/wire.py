"""Protobuf wire format, as far as the hot path needs it by hand.

Headers and metadata are parsed by the protobuf runtime (upb: 1.2 us a message). Bodies are not: an 8 MB chunk would be
copied into the runtime's arena and out again. The layout of a body message is `tag, length, HttpBody, other fields`, and
HttpBody has the same layout as the StreamedBodyResponse that answers it, so an echo is a slice with other lengths around.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_picker.protocol.errors import StreamFault

M = TypeVar("M", bound=Message)

# Tags of ProcessingRequest's first fields: (field << 3) | 2.
REQUEST_BODY = 0x22
RESPONSE_BODY = 0x32


class Body(NamedTuple):
    """One body message."""

    data: memoryview
    end: bool
    #: The HttpBody as it came, for an echo.
    http_body: memoryview
    #: The fields after it (metadata), b"" mostly.
    rest: memoryview


def varint(value: int) -> bytes:
    """`value` >= 0 as a base-128 varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def field(tag: int, payload: bytes) -> bytes:
    """A length-delimited field whose tag is one byte."""
    return _ONE_BYTE[tag] + varint(len(payload)) + payload


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
    view = memoryview(message)
    try:
        size, start = read_varint(message, 1)
        stop = start + size
        if stop > len(message):
            raise StreamFault("a body message is cut")
        http_body = view[start:stop]
        if size and message[start] == 0x0A:
            data_size, data_start = read_varint(message, start + 1)
            data_stop = data_start + data_size
            if data_stop > stop:
                raise StreamFault("a body message is cut")
            data, after = view[data_start:data_stop], data_stop
        else:
            data, after = view[start:start], start
    except IndexError:
        raise StreamFault("a body message is cut") from None
    flags = message[after:stop]
    if flags not in _FLAGS:
        return _any_order(http_body, view[stop:])
    return Body(data, _FLAGS[flags], http_body, view[stop:])


#: What follows the data in nearly every message: nothing, or end_of_stream written out.
_FLAGS = {b"": False, b"\x10\x01": True, b"\x10\x00": False}


def _any_order(http_body: memoryview, rest: memoryview) -> Body:
    """The same by the protobuf runtime: fields in another order, or flags of gRPC messages."""
    parsed = parse(pb.HttpBody, http_body)
    end = parsed.end_of_stream or parsed.end_of_stream_without_message
    return Body(memoryview(parsed.body), end, memoryview(parsed.SerializeToString()), rest)


def body_of(parsed: pb.HttpBody, rest: memoryview) -> Body:
    """A body that the protobuf runtime has parsed with the whole message."""
    return _any_order(memoryview(parsed.SerializeToString()), rest)


def parse(kind: type[M], data: bytes | memoryview) -> M:
    """A message of the protobuf runtime.

    Raises:
        StreamFault: not such a message.
    """
    try:
        return kind.FromString(bytes(data))
    except DecodeError:
        raise StreamFault("a message is not a ProcessingRequest") from None

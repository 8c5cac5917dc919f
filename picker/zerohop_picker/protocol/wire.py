"""Protobuf wire format, as far as the hot path needs it by hand.

Bodies: through the protobuf runtime an 8 MB chunk would be copied into its arena and out again. The layout of a body
message is `tag, length, HttpBody, other fields`, and HttpBody has the same layout as the StreamedBodyResponse that
answers it, so an echo is a slice with other lengths around.

Request headers: a dozen of them cost the runtime 9 us a message. Most have been seen before, byte for byte, so they are
looked up. Whatever is not laid out as Envoy does it goes through the runtime after all, with the same result.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_picker.protocol.errors import StreamFault
from zerohop_picker.request.headers import header_pair

M = TypeVar("M", bound=Message)

# Tags of ProcessingRequest's first fields: (field << 3) | 2.
REQUEST_HEADERS = 0x12
REQUEST_BODY = 0x22
RESPONSE_BODY = 0x2A


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


class Headers(NamedTuple):
    """The headers of one message."""

    #: Lower-case names; repeated ones joined by a comma.
    values: dict[str, str]
    end: bool
    #: The fields after them: modes, metadata.
    rest: bytes


def read_request_headers(message: bytes) -> Headers | None:
    """The headers of a message whose first byte is REQUEST_HEADERS; None when it is laid out in some other way."""
    values: dict[str, str] = {}
    count = 0
    try:
        size, at = read_varint(message, 1)
        stop = at + size
        if stop > len(message) or message[at] != 0x0A:
            return None
        size, at = read_varint(message, at + 1)
        map_stop = at + size
        while at < map_stop:
            if message[at] != 0x0A:
                return None
            size = message[at + 1]
            start = at + 2
            if size > 0x7F:
                if message[start] > 0x7F:
                    return None
                size, start = size & 0x7F | message[start] << 7, start + 1
            at = start + size
            entry = message[start:at]
            pair = _PAIRS.get(entry) or _read_pair(entry)
            if pair is None:
                return None
            values[pair[0]] = pair[1]
            count += 1
    except IndexError:
        return None
    flags = message[at:stop]
    if at != map_stop or flags not in _HEADER_FLAGS or len(values) != count:
        return None
    return Headers(values, _HEADER_FLAGS[flags], message[stop:])


def _read_pair(entry: bytes) -> tuple[str, str] | None:
    """Name and value of one HeaderValue that has a name and a raw value; None for any other."""
    parsed = pb.HeaderValue()
    try:
        parsed.ParseFromString(entry)
    except DecodeError:
        return None
    pair = header_pair(parsed)
    if pair[0] not in _VOLATILE and len(entry) <= _REMEMBERED_BYTES:
        if len(_PAIRS) >= _MOST_PAIRS:
            _PAIRS.clear()
        _PAIRS[entry] = pair
    return pair


#: Headers that came before, by their bytes: a gateway's requests differ in two or three of a dozen. Secrets and values
#: that never come again are not remembered.
_PAIRS: dict[bytes, tuple[str, str]] = {}
_MOST_PAIRS = 2048
_REMEMBERED_BYTES = 256
_VOLATILE = frozenset(
    (
        "authorization",
        "proxy-authorization",
        "cookie",
        "api-key",
        "x-api-key",
        "x-request-id",
        "traceparent",
        "tracestate",
    )
)

#: What follows the header map: nothing, or end_of_stream (field 3).
_HEADER_FLAGS = {b"": False, b"\x18\x01": True, b"\x18\x00": False}


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

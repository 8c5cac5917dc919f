"""ProcessingResponse messages as bytes, written by hand: 2 us where the protobuf runtime takes 12 for the same.

A test compares every one of them, byte for byte, with what the runtime writes for `envoy.service.ext_proc.v3`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.struct_pb2 import Struct

from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_picker.protocol.refusals import GRPC_STATUS, error_body
from zerohop_picker.protocol.wire import Body, field, varint
from zerohop_picker.request.headers import DESTINATION, DROPPED_REASON, NAMESPACE
from zerohop_picker.scheduling_contract import Refusal

# Tags of ProcessingResponse: (field << 3) | 2.
REQUEST_HEADERS = 0x0A
RESPONSE_HEADERS = 0x12
REQUEST_BODY = 0x1A
RESPONSE_BODY = 0x22
REQUEST_TRAILERS = b"\x2a\x00"
RESPONSE_TRAILERS = b"\x32\x00"
_IMMEDIATE = 0x3A
_DYNAMIC_METADATA = 0x42
_MODE_OVERRIDE = 0x4A

_CLEAR_ROUTE_CACHE = b"\x28\x01"
_OVERWRITE_IF_EXISTS_OR_ADD = b"\x18\x02"

#: `CommonResponse{}` for headers and bodies: goes on, changes nothing.
EMPTY = {tag: bytes((tag, 2, 0x0A, 0)) for tag in (REQUEST_HEADERS, RESPONSE_HEADERS, REQUEST_BODY, RESPONSE_BODY)}


def set_header(name: str, value: bytes) -> bytes:
    """One `set_headers` entry that overwrites. Only `raw_value` is written: Envoy refuses both."""
    header = field(0x0A, name.encode()) + field(0x1A, value)
    return field(0x0A, field(0x0A, header) + _OVERWRITE_IF_EXISTS_OR_ADD)


def remove_header(name: str) -> bytes:
    """One `remove_headers` entry."""
    return field(0x12, name.encode())


def content_length(size: int) -> bytes:
    """`set_header` for a content length."""
    text = b"%d" % size
    head, tail = _CONTENT_LENGTHS[len(text)]
    return head + text + tail


def _content_length_parts(digits: int) -> tuple[bytes, bytes]:
    head, _, tail = set_header("content-length", b"?" * digits).partition(b"?" * digits)
    return head, tail


_CONTENT_LENGTHS = [_content_length_parts(digits) if digits else (b"", b"") for digits in range(20)]


def headers_reply(tag: int, mutation: bytes, extra: bytes = b"", *, clear_route_cache: bool = False) -> bytes:
    """HeadersResponse (or BodyResponse) with header mutations; `extra` holds further fields of the message."""
    tail = _CLEAR_ROUTE_CACHE if clear_route_cache else b""
    head = b"\x12" + varint(len(mutation)) if mutation else b""
    common = b"\x0a" + varint(len(head) + len(mutation) + len(tail))
    size = len(common) + len(head) + len(mutation) + len(tail)
    return b"".join((varint(tag), varint(size), common, head, mutation, tail, extra))


def buffered_body_reply(mutation: bytes, body: bytes | None, extra: bytes) -> bytes:
    """BodyResponse of the BUFFERED modes: header mutations, and the new body unless it stays as it is."""
    common = field(0x12, mutation)
    if body is not None:
        common += field(0x1A, field(0x0A, body))
    return field(REQUEST_BODY, field(0x0A, common + _CLEAR_ROUTE_CACHE)) + extra


def echo(tag: int, http_body: bytes | memoryview) -> bytes:
    """BodyResponse whose `streamed_response` is the HttpBody that came."""
    return b"".join((_echo_prefix(tag, len(http_body)), http_body))


def _echo_prefix(tag: int, size: int) -> bytes:
    prefix = _PREFIXES.get((tag, size))
    if prefix is None:
        streamed = b"\x1a" + varint(size)
        mutation = b"\x1a" + varint(len(streamed) + size)
        common = b"\x0a" + varint(len(mutation) + len(streamed) + size)
        inside = common + mutation + streamed
        prefix = bytes((tag,)) + varint(len(inside) + size) + inside
        if size < _REMEMBERED_BYTES:
            _PREFIXES[tag, size] = prefix
    return prefix


#: Prefixes by tag and size: chunks of a token stream come in few sizes. Bounded by its key: 2 tags x 4,096 sizes.
_PREFIXES: dict[tuple[int, int], bytes] = {}
_REMEMBERED_BYTES = 4096


def echoes(tag: int, body: Body, chunk_bytes: int | None) -> list[bytes]:
    """One body message sent back as it came; in several when it is longer than `chunk_bytes` (None: never split)."""
    if chunk_bytes is None or len(body.data) <= chunk_bytes:
        return [echo(tag, body.http_body)]
    return streamed(tag, body.data, end=body.end, chunk_bytes=chunk_bytes)


def streamed(tag: int, body: bytes | memoryview, *, end: bool, chunk_bytes: int) -> list[bytes]:
    """`body` as streamed responses of at most `chunk_bytes`, the last with `end`; an empty body is one empty chunk."""
    size = len(body)
    if 0 < size <= chunk_bytes:
        head, tail = b"\x0a" + varint(size), b"\x10\x01" if end else b""
        return [b"".join((_echo_prefix(tag, len(head) + size + len(tail)), head, body, tail))]
    view = memoryview(body)
    out = []
    for start in range(0, size or 1, chunk_bytes):
        stop = min(start + chunk_bytes, size)
        head = b"\x0a" + varint(stop - start) if stop > start else b""
        tail = b"\x10\x01" if end and stop == size else b""
        out.append(b"".join((_echo_prefix(tag, len(head) + stop - start + len(tail)), head, view[start:stop], tail)))
    return out


def destination(value: str) -> tuple[bytes, bytes]:
    """(header mutation, dynamic metadata) that carry one destination, the same value in both."""
    found = _DESTINATIONS.get(value)
    if found is None:
        raw = value.encode()
        entry = field(0x0A, DESTINATION.encode()) + field(0x12, field(0x1A, raw))
        found = set_header(DESTINATION, raw), _in_namespace(field(0x0A, entry))
        if len(_DESTINATIONS) >= _MOST_DESTINATIONS:
            _DESTINATIONS.clear()
        _DESTINATIONS[value] = found
    return found


_DESTINATIONS: dict[str, tuple[bytes, bytes]] = {}
_MOST_DESTINATIONS = 4096


def plain_headers_reply(endpoints: tuple[str, ...], size: int) -> bytes:
    """The answer to request headers that says the destination and the content length (0: none), and nothing else.

    It differs between requests in the digits of the length alone, so what stands around them is kept.
    """
    text = b"%d" % size if size else b""
    around = _PLAIN.get((endpoints, len(text)))
    if around is None:
        around = _around_length(endpoints, len(text))
        if len(_PLAIN) >= _MOST_DESTINATIONS:
            _PLAIN.clear()
        _PLAIN[endpoints, len(text)] = around
    return around[0] + text + around[1]


def _around_length(endpoints: tuple[str, ...], digits: int) -> tuple[bytes, bytes]:
    mutation, metadata = destination(",".join(endpoints))
    if not digits:
        return headers_reply(REQUEST_HEADERS, mutation, metadata, clear_route_cache=True), b""
    ones, twos = (
        headers_reply(REQUEST_HEADERS, mutation + content_length(number), metadata, clear_route_cache=True)
        for number in (int("1" * digits), int("2" * digits))
    )
    at = next(at for at, byte in enumerate(ones) if byte != twos[at])
    return ones[:at], ones[at + digits :]


_PLAIN: dict[tuple[tuple[str, ...], int], tuple[bytes, bytes]] = {}


def destination_with(value: str, more: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """The same with further fields beside the destination (scores)."""
    fields = Struct()
    fields.update(dict(more))
    fields.update({DESTINATION: value})
    return destination(value)[0], _in_namespace(fields.SerializeToString(deterministic=True))


def _in_namespace(fields: bytes) -> bytes:
    """`dynamic_metadata{envoy.lb: {fields}}`: a Struct in a Value in a map entry in a Struct."""
    entry = field(0x0A, NAMESPACE.encode()) + field(0x12, field(0x2A, fields))
    return field(_DYNAMIC_METADATA, field(0x0A, entry))


def mode_override(*, buffered: bool, response_body_mode: int | None) -> bytes:
    """The top-level `mode_override`: body mode of the request, and of the response (None: skip the response).

    A mode override states every body mode, so what is to stay as it was has to be repeated.
    """
    mode = pb.ProcessingMode(request_body_mode=pb.BUFFERED if buffered else pb.NONE)
    if response_body_mode is None:
        mode.response_header_mode = pb.SKIP
    else:
        mode.response_body_mode = response_body_mode  # type: ignore[assignment]
    return field(_MODE_OVERRIDE, mode.SerializeToString())


def immediate(refusal: Refusal, *, grpc: bool, more: Iterable[tuple[str, bytes]] = ()) -> bytes:
    """The answer that ends the exchange: status, JSON error, reason header; with a gRPC status for a gRPC client."""
    headers = set_header("content-type", b"application/json")
    if refusal.reason:
        headers += set_header(DROPPED_REASON, refusal.reason.encode())
    if refusal.retry_after_s is not None:
        headers += set_header("retry-after", str(refusal.retry_after_s).encode())
    for name, value in more:
        headers += set_header(name, value)
    payload = field(0x0A, b"\x08" + varint(refusal.status)) + field(0x12, headers)
    payload += field(0x1A, error_body(refusal))
    if grpc:
        payload += field(0x22, b"\x08" + varint(GRPC_STATUS.get(refusal.status, 2)))
    details = f"zerohop_{refusal.reason.replace('-', '_')}" if refusal.reason else "zerohop_refused"
    return field(_IMMEDIATE, payload + field(0x2A, details.encode()))

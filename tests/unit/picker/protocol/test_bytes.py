"""Our subset of the protocol and Envoy's own definitions are the same on the wire."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as envoy
from google.protobuf.descriptor import Descriptor
from hypothesis import given
from hypothesis import strategies as st

from support.extproc import CHAT, Exchange, request_body, request_headers
from support.schedulers import FixedScheduler
from zerohop_picker._pb import extproc_pb2 as ours
from zerohop_picker.protocol import ProtocolCore, replies, wire
from zerohop_picker.protocol.errors import StreamFault
from zerohop_picker.request.headers import are_plain, read_headers
from zerohop_picker.scheduling_contract import Refusal

SAME_NUMBERS_OTHER_TYPE = {("HttpStatus", "code"): "StatusCode is an enum there"}


def _compare(mine: Descriptor, theirs: Descriptor, seen: set[str]) -> None:
    if mine.full_name in seen or mine.full_name.startswith("google."):
        return
    seen.add(mine.full_name)
    for field in mine.fields:
        other = theirs.fields_by_name[field.name]
        assert field.number == other.number, field.full_name
        if (mine.name, field.name) not in SAME_NUMBERS_OTHER_TYPE:
            assert field.type == other.type, field.full_name
        if field.enum_type is not None and other.enum_type is not None:
            assert [(v.name, v.number) for v in field.enum_type.values] == [
                (v.name, v.number) for v in other.enum_type.values
            ]
        if field.message_type is not None and other.message_type is not None:
            _compare(field.message_type, other.message_type, seen)


@pytest.mark.parametrize("name", ["ProcessingRequest", "ProcessingResponse"])
def test_every_field_has_envoys_number_and_type(name: str) -> None:
    seen: set[str] = set()
    _compare(getattr(ours, name).DESCRIPTOR, getattr(envoy, name).DESCRIPTOR, seen)
    assert len(seen) > 5


def _set(mutation: Any, name: str, value: bytes) -> None:
    option = mutation.set_headers.add()
    option.header.key = name
    option.header.raw_value = value
    option.append_action = 2


def _destination_reply() -> tuple[bytes, Any]:
    value = "10.0.0.1:8000,[fd00::1]:8000"
    expected = envoy.ProcessingResponse()
    common = expected.request_headers.response
    _set(common.header_mutation, "x-gateway-destination-endpoint", value.encode())
    _set(common.header_mutation, "content-length", b"110")
    common.clear_route_cache = True
    expected.dynamic_metadata.get_or_create_struct("envoy.lb").update({"x-gateway-destination-endpoint": value})
    mutation, metadata = replies.destination(value)
    written = replies.headers_reply(
        replies.REQUEST_HEADERS, mutation + replies.content_length(110), metadata, clear_route_cache=True
    )
    return written, expected


def _scores_reply() -> tuple[bytes, Any]:
    expected = envoy.ProcessingResponse()
    common = expected.request_headers.response
    _set(common.header_mutation, "x-gateway-destination-endpoint", b"a:1")
    fields = expected.dynamic_metadata.get_or_create_struct("envoy.lb")
    fields.update({"x-gateway-destination-endpoint": "a:1", "x-gateway-destination-endpoint-scores": {"a:1": 0.5}})
    mutation, metadata = replies.destination_with("a:1", {"x-gateway-destination-endpoint-scores": {"a:1": 0.5}})
    return replies.headers_reply(replies.REQUEST_HEADERS, mutation, metadata), expected


def _buffered_reply() -> tuple[bytes, Any]:
    expected = envoy.ProcessingResponse()
    common = expected.request_body.response
    _set(common.header_mutation, "x-gateway-destination-endpoint", b"a:1")
    common.header_mutation.remove_headers.append("x-gateway-destination-endpoint-subset")
    common.body_mutation.body = b"x" * 300
    common.clear_route_cache = True
    expected.dynamic_metadata.get_or_create_struct("envoy.lb").update({"x-gateway-destination-endpoint": "a:1"})
    mutation, metadata = replies.destination("a:1")
    mutation += replies.remove_header("x-gateway-destination-endpoint-subset")
    return replies.buffered_body_reply(mutation, b"x" * 300, metadata), expected


def _override_reply() -> tuple[bytes, Any]:
    expected = envoy.ProcessingResponse()
    expected.request_headers.response.header_mutation.remove_headers.append("x-gateway-destination-endpoint")
    expected.mode_override.request_body_mode = 2
    expected.mode_override.response_header_mode = 2
    written = replies.headers_reply(
        replies.REQUEST_HEADERS,
        replies.remove_header("x-gateway-destination-endpoint"),
        replies.mode_override(buffered=True, response_body_mode=None),
    )
    return written, expected


def _streamed_reply(size: int, end: bool) -> tuple[bytes, Any]:
    expected = envoy.ProcessingResponse()
    chunk = expected.request_body.response.body_mutation.streamed_response
    chunk.SetInParent()
    chunk.body = b"y" * size
    chunk.end_of_stream = end
    written = list(replies.streamed(replies.REQUEST_BODY, b"y" * size, end=end, chunk_bytes=62_000))
    assert len(written) == 1
    return written[0], expected


def _empty_reply(kind: str) -> tuple[bytes, Any]:
    expected = envoy.ProcessingResponse()
    getattr(expected, kind).response.SetInParent()
    return replies.EMPTY[getattr(replies, kind.upper())], expected


def _trailers_reply(kind: str) -> tuple[bytes, Any]:
    expected = envoy.ProcessingResponse()
    getattr(expected, kind).SetInParent()
    written: bytes = getattr(replies, kind.upper())
    return written, expected


def _immediate_reply(*, grpc: bool) -> tuple[bytes, Any]:
    refusal = Refusal(429, "rejected-saturated", 'full "up"', 3)
    expected = envoy.ProcessingResponse()
    answer = expected.immediate_response
    answer.status.code = 429
    _set(answer.headers, "content-type", b"application/json")
    _set(answer.headers, "x-llm-d-request-dropped-reason", b"rejected-saturated")
    _set(answer.headers, "retry-after", b"3")
    answer.body = (
        b'{"error":{"message":"full \\"up\\"","type":"rate_limit_error","param":null,"code":"rejected-saturated"}}'
    )
    if grpc:
        answer.grpc_status.status = 8
    answer.details = "zerohop_rejected_saturated"
    return replies.immediate(refusal, grpc=grpc), expected


@pytest.mark.parametrize(
    "case",
    [
        _destination_reply,
        _scores_reply,
        _buffered_reply,
        _override_reply,
        lambda: _streamed_reply(0, True),
        lambda: _streamed_reply(0, False),
        lambda: _streamed_reply(1, True),
        lambda: _streamed_reply(127, False),
        lambda: _streamed_reply(62_000, True),
        lambda: _empty_reply("request_headers"),
        lambda: _empty_reply("response_headers"),
        lambda: _empty_reply("request_body"),
        lambda: _empty_reply("response_body"),
        lambda: _trailers_reply("request_trailers"),
        lambda: _trailers_reply("response_trailers"),
        lambda: _immediate_reply(grpc=False),
        lambda: _immediate_reply(grpc=True),
    ],
)
def test_reply_is_byte_for_byte_what_envoys_definitions_write(case: Callable[[], tuple[bytes, Any]]) -> None:
    written, expected = case()
    assert written == expected.SerializeToString(deterministic=True)


def test_an_echo_keeps_every_field_of_the_body() -> None:
    message = envoy.ProcessingRequest()
    message.request_body.body = b"\x00message"
    message.request_body.end_of_stream = True
    message.request_body.end_of_stream_without_message = True
    message.request_body.grpc_message_compressed = True
    body = wire.read_body(message.SerializeToString())
    (written,) = replies.echoes(replies.REQUEST_BODY, body, None)
    chunk = envoy.ProcessingResponse.FromString(written).request_body.response.body_mutation.streamed_response
    assert chunk.SerializeToString() == message.request_body.SerializeToString()


#: What HTTP lets names and values hold: no control bytes but the tab. The names that are searched for come up often,
#: and so do values that look like them.
_SEARCHED = [":path", "content-type", "content-length", "x-request-id", ":method"]
_NAME = st.sampled_from(_SEARCHED) | st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=140)
_ALLOWED = bytes([9, *range(32, 127), *range(128, 256)])
_VALUE = st.lists(st.sampled_from([*[bytes([b]) for b in _ALLOWED], b":path", b"content-type", b"x" * 120]), max_size=9)


@given(
    st.lists(st.tuples(_NAME, _VALUE), max_size=12, unique_by=lambda pair: pair[0].lower()),
    st.booleans(),
    st.booleans(),
)
def test_headers_are_read_by_hand_as_the_runtime_reads_them(
    pairs: list[tuple[str, list[bytes]]], end: bool, config: bool
) -> None:
    message = envoy.ProcessingRequest()
    message.request_headers.headers.SetInParent()
    for name, value in pairs:
        item = message.request_headers.headers.headers.add()
        item.key, item.raw_value = name.lower(), b"".join(value)
    message.request_headers.end_of_stream = end
    if config:
        message.protocol_config.request_body_mode = 4
    data = message.SerializeToString()
    by_hand = wire.read_request_headers(data)
    by_runtime = read_headers(ours.ProcessingRequest.FromString(data).request_headers.headers.headers)
    if by_runtime.get(":method"):
        assert by_hand is not None, "of Envoy's shape"
    if by_hand is not None:
        assert [by_hand.values.get(name) or None for name in _SEARCHED] == [
            by_runtime.get(n) or None for n in _SEARCHED
        ]
        assert (dict(by_hand.values), by_hand.end, len(by_hand.values)) == (by_runtime, end, len(by_runtime))
        assert by_hand.values.plain <= are_plain(by_runtime)
        assert ours.ProcessingRequest.FromString(by_hand.rest).HasField("protocol_config") == config


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 16_383, 16_384, 40_000])
def test_headers_of_any_length_are_found(size: int) -> None:
    path = "/" + "p" * size
    headers = wire.read_request_headers(
        request_headers(path, headers={"x-request-id": "i" * size, "user-agent": "u" * size})
    )
    assert headers is not None
    assert (headers.values.get(":path"), headers.values.get("x-request-id", "")) == (path, "i" * size)
    assert headers.values.get("content-type") == "application/json"


@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_a_body_is_read_by_hand_as_the_runtime_reads_it(data: bytes, end: bool, hint: bool) -> None:
    message = request_body(data, end=end, subset=["10.0.0.1:1"] if hint else None)
    body = wire.read_body(message)
    assert (bytes(body.data), body.end) == (data, end)
    assert ours.ProcessingRequest.FromString(bytes(body.rest)).HasField("metadata_context") == hint


@pytest.mark.parametrize("message", [request_headers(), request_body(CHAT * 20)])
def test_a_cut_message_is_a_fault_and_nothing_else(message: bytes) -> None:
    whole = 0
    for cut in range(1, len(message)):
        exchange = Exchange(ProtocolCore(FixedScheduler()))
        with contextlib.suppress(StreamFault):
            exchange.feed(message[:cut])
            whole += 1  # cut between two fields: a shorter message, and a legal one
    assert whole <= 3

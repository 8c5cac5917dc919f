"""What a gateway says in `metadata_context`: the subset hint, and which endpoint served."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.struct_pb2 import Value

from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_picker.protocol.wire import parse
from zerohop_picker.request.headers import DESTINATION_SERVED, NAMESPACE, SUBSET, SUBSET_NAMESPACE
from zerohop_picker.request.subset import split_list


class Context(NamedTuple):
    """What a message says beside its headers or body."""

    #: (request body mode, response body mode) where the message states them.
    modes: tuple[int, int] | None
    #: The gateway reads no replies.
    observability: bool
    subset: tuple[str, ...] | None


def context_of(message: pb.ProcessingRequest) -> Context:
    """The context of one message."""
    config = message.protocol_config if message.HasField("protocol_config") else None
    return Context(
        None if config is None else (config.request_body_mode, config.response_body_mode),
        message.observability_mode,
        subset_hint(message.metadata_context) if message.HasField("metadata_context") else None,
    )


def read_context(rest: bytes) -> Context:
    """The context in the fields that follow headers or body. Equal on nearly every message of a gateway, so remembered.

    Raises:
        StreamFault: malformed.
    """
    found = _CONTEXTS.get(rest)
    if found is None:
        found = context_of(parse(pb.ProcessingRequest, rest))
        if len(rest) <= _REMEMBERED_BYTES:
            if len(_CONTEXTS) >= _MOST_CONTEXTS:
                _CONTEXTS.clear()
            _CONTEXTS[rest] = found
    return found


_CONTEXTS: dict[bytes, Context] = {}
_MOST_CONTEXTS = 256
_REMEMBERED_BYTES = 1024


def subset_hint(metadata: pb.Metadata) -> tuple[str, ...] | None:
    """The endpoints a gateway allows: None when it says nothing, () when it allows none.

    The value is a list of strings by the protocol; a plain string with commas is read the same, because failing open on
    it would send requests where the gateway forbids. Anything else that is present allows nothing.
    """
    value = _value(metadata, SUBSET_NAMESPACE, SUBSET)
    if value is None:
        return None
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return split_list(value.string_value)
    if kind == "list_value":
        return tuple(entry for item in value.list_value.values for entry in split_list(item.string_value))
    return ()


def served_endpoint(metadata: pb.Metadata) -> str | None:
    """The endpoint that served the request, as the gateway reports it with the response headers."""
    value = _value(metadata, NAMESPACE, DESTINATION_SERVED)
    return None if value is None else value.string_value or None


def served_or_why_not(metadata: pb.Metadata) -> str:
    """What the Gateway conformance suite wants to read: the endpoint that served, or which part of the report lacks."""
    served = served_endpoint(metadata)
    if served is not None:
        return served
    lacks = "destination endpoint served" if NAMESPACE in metadata.filter_metadata else "envoy lb"
    return f"fail: missing {lacks} metadata"


def _value(metadata: pb.Metadata, namespace: str, key: str) -> Value | None:
    spaces = metadata.filter_metadata
    if namespace not in spaces:
        return None
    return spaces[namespace].fields.get(key)

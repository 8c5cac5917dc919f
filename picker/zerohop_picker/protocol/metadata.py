"""What a gateway says in `metadata_context`: the subset hint, and which endpoint served."""

from __future__ import annotations

from google.protobuf.struct_pb2 import Value

from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_picker.request.headers import DESTINATION_SERVED, NAMESPACE, SUBSET, SUBSET_NAMESPACE
from zerohop_picker.request.subset import split_list


def subset_hint(metadata: pb.Metadata) -> tuple[str, ...] | None:
    """The endpoints a gateway allows: None when it says nothing, () when it allows none.

    The value is a list of strings by the protocol; a plain string with commas is read the same, because failing open on it
    would send requests where the gateway forbids. Anything else that is present allows nothing.
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


def _value(metadata: pb.Metadata, namespace: str, key: str) -> Value | None:
    spaces = metadata.filter_metadata
    if namespace not in spaces:
        return None
    fields = spaces[namespace].fields
    return fields[key] if key in fields else None

"""Ext-proc messages for tests, written and read with Envoy's own definitions (xds-protos), never with ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as envoy

from zerohop_picker.protocol import ExtProcStream, ProtocolCore

NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX, GRPC = range(6)

__all__ = ["CHAT", "DESTINATION", "Exchange", "envoy", "removed_headers", "set_headers"]

DESTINATION = "x-gateway-destination-endpoint"
CHAT = b'{"model":"llama-3","messages":[{"role":"user","content":"hello"}],"seed":9007199254740993,"temperature":1.0e0}'

Subset = Sequence[str] | str | None


def request_headers(
    path: str = "/v1/chat/completions",
    *,
    method: str = "POST",
    end: bool = False,
    mode: int | None = FULL_DUPLEX,
    response_mode: int = NONE,
    headers: Mapping[str, str] | None = None,
    subset: Subset = None,
    observability: bool = False,
) -> bytes:
    """Request headers as a gateway sends them first; `mode` None states no modes at all."""
    message = envoy.ProcessingRequest()
    _add_headers(
        message.request_headers,
        {
            ":method": method,
            ":path": path,
            ":authority": "models.example",
            "content-type": "application/json",
            "x-request-id": "0b1e77a4-7d5c-4c0c-9d55-2f1df8b5a001",
            **(headers or {}),
        },
    )
    message.request_headers.end_of_stream = end
    _add_subset(message, subset)
    message.observability_mode = observability
    if mode is not None:
        message.protocol_config.SetInParent()
        message.protocol_config.request_body_mode = mode
        message.protocol_config.response_body_mode = response_mode
    data: bytes = message.SerializeToString()
    return data


def request_body(data: bytes = CHAT, *, end: bool = True, subset: Subset = None) -> bytes:
    message = envoy.ProcessingRequest()
    message.request_body.SetInParent()
    message.request_body.body = data
    message.request_body.end_of_stream = end
    _add_subset(message, subset)
    out: bytes = message.SerializeToString()
    return out


def request_trailers() -> bytes:
    message = envoy.ProcessingRequest()
    message.request_trailers.SetInParent()
    data: bytes = message.SerializeToString()
    return data


def response_headers(
    status: int = 200, *, end: bool = False, served: str | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    message = envoy.ProcessingRequest()
    _add_headers(message.response_headers, {":status": str(status), **(headers or {})})
    message.response_headers.end_of_stream = end
    if served is not None:
        message.metadata_context.filter_metadata["envoy.lb"].update({"x-gateway-destination-endpoint-served": served})
    data: bytes = message.SerializeToString()
    return data


def response_body(data: bytes, *, end: bool = False) -> bytes:
    message = envoy.ProcessingRequest()
    message.response_body.SetInParent()
    message.response_body.body = data
    message.response_body.end_of_stream = end
    out: bytes = message.SerializeToString()
    return out


def response_trailers() -> bytes:
    message = envoy.ProcessingRequest()
    message.response_trailers.SetInParent()
    data: bytes = message.SerializeToString()
    return data


def _add_headers(where: Any, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        item = where.headers.headers.add()
        item.key = name
        item.raw_value = value.encode()


def _add_subset(message: Any, subset: Subset) -> None:
    if subset is not None:
        value = subset if isinstance(subset, str) else list(subset)
        message.metadata_context.filter_metadata["envoy.lb.subset_hint"].update(
            {"x-gateway-destination-endpoint-subset": value}
        )


class Exchange:
    """One stream over a core, with what came back, read by Envoy's definitions."""

    def __init__(self, core: ProtocolCore, **kwargs: Any):
        self.stream = ExtProcStream(core, **kwargs)
        self.replies: list[Any] = []
        self.now_ns = 1_000_000_000

    def feed(self, *messages: bytes) -> list[Any]:
        """Feeds messages; the replies to these."""
        out = []
        for message in messages:
            out += [envoy.ProcessingResponse.FromString(reply) for reply in self.stream.receive(message, self.now_ns)]
        self.replies += out
        return out

    @property
    def kinds(self) -> list[str]:
        return [reply.WhichOneof("response") for reply in self.replies]

    @property
    def body(self) -> bytes:
        """The request body as Envoy would forward it."""
        return b"".join(
            reply.request_body.response.body_mutation.streamed_response.body
            for reply in self.replies
            if reply.WhichOneof("response") == "request_body"
        )

    @property
    def refusal(self) -> Any:
        """The immediate response, or None."""
        found = [reply.immediate_response for reply in self.replies if reply.HasField("immediate_response")]
        return found[0] if found else None

    @property
    def destination(self) -> str | None:
        """The destination, checked to be the same in header and metadata; None when there is none."""
        for reply in self.replies:
            value = set_headers(reply).get(DESTINATION)
            if value is not None:
                fields = reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields
                assert fields[DESTINATION].string_value == value, "header and metadata differ"
                return value
        return None


def set_headers(reply: Any) -> dict[str, str]:
    """Headers that a reply sets."""
    kind = reply.WhichOneof("response")
    mutation = (
        reply.immediate_response.headers
        if kind == "immediate_response"
        else getattr(reply, kind).header_mutation
        if kind.endswith("trailers")
        else getattr(reply, kind).response.header_mutation
    )
    return {item.header.key: item.header.raw_value.decode() for item in mutation.set_headers}


def removed_headers(reply: Any) -> list[str]:
    return list(getattr(reply, reply.WhichOneof("response")).response.header_mutation.remove_headers)

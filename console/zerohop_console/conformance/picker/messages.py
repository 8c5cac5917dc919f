"""From steps of a case to ProcessingRequest bytes."""

from __future__ import annotations

from collections.abc import Mapping

from zerohop_console.conformance.picker.script import (
    Pool,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    Step,
)
from zerohop_picker._pb import extproc_pb2 as pb

SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET = "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"


def message_of(step: Step, pool: Pool) -> bytes:
    """The message that a sending step stands for."""
    message = pb.ProcessingRequest()
    if isinstance(step, RequestHeaders):
        _request_headers(message, step, pool)
    elif isinstance(step, RequestBody):
        message.request_body.CopyFrom(pb.HttpBody(body=step.data, end_of_stream=step.end))
        _subset(message, step.subset, pool)
    elif isinstance(step, RequestTrailers):
        message.request_trailers.SetInParent()
    elif isinstance(step, ResponseHeaders):
        _add(message.response_headers, {":status": str(step.status), "content-type": "text/event-stream"})
        message.response_headers.end_of_stream = step.end
        if step.served is not None:
            fields = message.metadata_context.filter_metadata["envoy.lb"]
            fields.update({SERVED: step.served.format(*pool)})
    elif isinstance(step, ResponseBody):
        message.response_body.CopyFrom(pb.HttpBody(body=step.data, end_of_stream=step.end))
    else:
        message.response_trailers.SetInParent()
    return message.SerializeToString()


def _request_headers(message: pb.ProcessingRequest, step: RequestHeaders, pool: Pool) -> None:
    headers = {
        ":method": step.method,
        ":path": step.path,
        ":scheme": "http",
        ":authority": "conformance.example",
        "content-type": step.content_type,
    }
    if step.request_id is not None:
        headers["x-request-id"] = step.request_id
    headers |= {name: value.format(*pool) for name, value in step.headers.items()}
    if step.upper_case:
        headers = {name.title(): value for name, value in headers.items()}
    _add(message.request_headers, headers, raw=step.raw_values)
    message.request_headers.end_of_stream = step.end
    message.observability_mode = step.observability
    _subset(message, step.subset, pool)
    if step.mode is not None:
        message.protocol_config.SetInParent()
        message.protocol_config.request_body_mode = step.mode.value  # type: ignore[assignment]
        message.protocol_config.response_body_mode = step.response_mode.value  # type: ignore[assignment]


def _add(where: pb.HttpHeaders, headers: Mapping[str, str], *, raw: bool = True) -> None:
    for name, value in headers.items():
        if raw:
            where.headers.headers.add(key=name, raw_value=value.encode())
        else:
            where.headers.headers.add(key=name, value=value)


def _subset(message: pb.ProcessingRequest, subset: tuple[str, ...] | str | None, pool: Pool) -> None:
    if subset is None:
        return
    value = subset.format(*pool) if isinstance(subset, str) else [entry.format(*pool) for entry in subset]
    message.metadata_context.filter_metadata[SUBSET_NAMESPACE].update({SUBSET: value})

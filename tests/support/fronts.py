"""Fronts and gateways for tests: a front over a real socket, and a stock grpc.aio client that speaks to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_picker.fronts.calls import EXT_PROC_PATH, Call, Metadata, Push, Services
from zerohop_picker.fronts.front import Front
from zerohop_picker.fronts.grpcio import GrpcioFront
from zerohop_picker.fronts.health_calls import health_services
from zerohop_picker.fronts.limits import Limits
from zerohop_picker.fronts.native import NativeFront
from zerohop_picker.fronts.sockets import SocketAccess
from zerohop_picker.health import Health
from zerohop_picker.metrics import Metrics
from zerohop_picker.protocol.core import ProtocolCore
from zerohop_picker.protocol.stream import ExtProcStream
from zerohop_picker.tls import Tls
from zerohop_process.address import Listen

PROCESS = EXT_PROC_PATH.decode()


class Served:
    """A front that serves one core, and what tests look at."""

    def __init__(self, front: Front, core: ProtocolCore, where: Listen, metrics: Metrics, tls: Tls | None) -> None:
        self.front = front
        self.core = core
        self.where = where
        self.metrics = metrics
        self.tls = tls
        self.health = Health()

    def channel(self, *, options: Sequence[tuple[str, Any]] = ()) -> Any:
        """Return a new channel of a stock client, with a connection of its own."""
        options = (("grpc.use_local_subchannel_pool", 1), *options)
        if self.tls is None:
            return grpc.aio.insecure_channel(str(self.where), options=options)
        credentials = grpc.ssl_channel_credentials(self.tls.pair.certificate)
        names = (("grpc.ssl_target_name_override", "localhost"), *options)
        return grpc.aio.secure_channel(str(self.where), credentials, options=names)

    def counted(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        values = [family[5] for family in self.metrics.page() if family[0] == name]
        assert values, f"no metric {name}"
        return float(sum(value for _, value in values[0]))


def extproc_services(core: ProtocolCore, pool: str | None = None) -> Services:
    """Return the ext-proc service over `core`."""

    def process(metadata: Metadata, push: Push) -> Call:
        return ExtProcStream(core, pool)

    return {EXT_PROC_PATH: process}


@contextlib.asynccontextmanager
async def serving(
    kind: str, core: ProtocolCore, where: str, *, tls: bool = False, limits: Limits | None = None,
    folder: Path | None = None, client_ca: Path | None = None,
) -> AsyncIterator[Served]:  # fmt: skip
    """Run the front `kind` ("native" or "grpcio") at `where` with ext-proc and health services."""
    metrics = Metrics()
    front: Front
    front = NativeFront(limits or Limits(), metrics) if kind == "native" else GrpcioFront(limits or Limits(), metrics)
    pair = Tls(folder, client_ca, metrics) if tls else None
    served = Served(front, core, Listen.parse(where), metrics, pair)
    services = {**extproc_services(core), **health_services(served.health)}
    served.where = await front.listen(
        served.where, services, access=SocketAccess(mode=0o600), tls=pair, reuse_port=False
    )
    try:
        yield served
    finally:
        await front.close()


def request_headers(
    headers: dict[str, str] | None = None, *, mode: Any = pb.FULL_DUPLEX_STREAMED, response: Any = None,
    end: bool = False,
) -> pb.ProcessingRequest:  # fmt: skip
    """Return the first message of an exchange, as Envoy writes it."""
    message = pb.ProcessingRequest()
    fields = {
        ":method": "POST", ":path": "/v1/chat/completions", ":authority": "models.example", ":scheme": "http",
        "content-type": "application/json", **(headers or {}),
    }  # fmt: skip
    for name, value in fields.items():
        header = message.request_headers.headers.headers.add()
        header.key, header.raw_value = name, value.encode()
    message.request_headers.end_of_stream = end
    message.protocol_config.request_body_mode = mode
    message.protocol_config.response_body_mode = mode if response is None else response
    return message


def request_body(data: bytes, *, end: bool = False) -> pb.ProcessingRequest:
    """Return one request body message."""
    message = pb.ProcessingRequest()
    message.request_body.body, message.request_body.end_of_stream = data, end
    return message


def response_headers(status: str = "200") -> pb.ProcessingRequest:
    """Return the response headers message of an event stream."""
    message = pb.ProcessingRequest()
    for name, value in {":status": status, "content-type": "text/event-stream"}.items():
        header = message.response_headers.headers.headers.add()
        header.key, header.raw_value = name, value.encode()
    return message


def response_body(data: bytes, *, end: bool = False) -> pb.ProcessingRequest:
    """Return one response body message."""
    message = pb.ProcessingRequest()
    message.response_body.body, message.response_body.end_of_stream = data, end
    return message


class Exchange:
    """One ext-proc stream of a stock client."""

    def __init__(self, channel: Any, metadata: Sequence[tuple[str, str]] = ()) -> None:
        method = channel.stream_stream(
            PROCESS, pb.ProcessingRequest.SerializeToString, pb.ProcessingResponse.FromString
        )
        self.call = method(metadata=metadata)

    async def send(self, *messages: pb.ProcessingRequest) -> None:
        for message in messages:
            await self.call.write(message)

    async def next(self) -> pb.ProcessingResponse:
        reply = await self.call.read()
        assert isinstance(reply, pb.ProcessingResponse), f"the stream ended: {await self.call.code()}"
        return reply

    async def rest(self) -> list[pb.ProcessingResponse]:
        """Return every reply until the picker ends the stream."""
        replies = []
        while isinstance(reply := await self.call.read(), pb.ProcessingResponse):
            replies.append(reply)
        return replies

    async def status(self) -> tuple[grpc.StatusCode, str]:
        return await self.call.code(), await self.call.details() or ""


def echoed(replies: Sequence[pb.ProcessingResponse]) -> bytes:
    """Return the request body that `replies` hand back."""
    return b"".join(reply.request_body.response.body_mutation.streamed_response.body for reply in replies)


def destination(reply: pb.ProcessingResponse) -> str | None:
    """Return the destination that a reply sets as a header, None for none."""
    for kind in ("request_headers", "request_body"):
        if reply.HasField(kind):
            for option in getattr(reply, kind).response.header_mutation.set_headers:
                if option.header.key == "x-gateway-destination-endpoint":
                    return str(option.header.raw_value, "latin-1")
    return None

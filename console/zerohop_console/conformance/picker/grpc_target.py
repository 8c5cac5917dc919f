"""A picker reached over gRPC: the ext-proc stream, and the health service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from zerohop_console.conformance.picker.exchange import Ended
from zerohop_picker._pb import health_pb2
from zerohop_process.errors import ConfigError

_PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_HEALTH = "/grpc.health.v1.Health/"
_END: Any = grpc.aio.EOF


@dataclass(frozen=True)
class Security:
    """How to connect: plain text, or TLS with what is needed for it."""

    tls: bool = False
    #: Certificates that are trusted; None with `tls`: whatever the server shows is taken.
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None


def channel(target: str, security: Security, *, shown: bytes | None = None) -> grpc.aio.Channel:
    """A channel to `target`. `shown` is the certificate that the server showed, trusted when no CA is given.

    Raises:
        ConfigError: a file cannot be read.
    """
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]
    if not security.tls:
        return grpc.aio.insecure_channel(target, options=options)
    if security.server_name is not None:
        options.append(("grpc.ssl_target_name_override", security.server_name))
    credentials = grpc.ssl_channel_credentials(
        root_certificates=shown if security.ca_file is None else _read(security.ca_file),
        private_key=None if security.key_file is None else _read(security.key_file),
        certificate_chain=None if security.certificate_file is None else _read(security.certificate_file),
    )
    return grpc.aio.secure_channel(target, credentials, options=options)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


class GrpcTarget:
    """Streams over one channel."""

    def __init__(self, on: grpc.aio.Channel):
        self._process: Any = on.stream_stream(_PROCESS, request_serializer=_same, response_deserializer=_same)

    def open(self) -> GrpcExchange:
        """A new stream."""
        return GrpcExchange(self._process())


class GrpcExchange:
    """One stream over gRPC."""

    def __init__(self, call: Any):
        self._call = call
        self._reading: asyncio.Task[Any] | None = None
        self._ended: Ended | None = None

    async def send(self, message: bytes) -> None:
        """Sends one message; a stream that the picker has ended takes none."""
        if self._ended is None and not self._call.done():
            # A stream that has ended meanwhile: how it ended is read below.
            with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                await self._call.write(message)

    async def receive(self, timeout_s: float) -> bytes | Ended:
        """The next message or the end. A read that times out goes on, so that nothing is lost."""
        if self._ended is not None:
            return self._ended
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._call.read())
        done, _ = await asyncio.wait((self._reading,), timeout=timeout_s)
        if not done:
            raise TimeoutError
        reading, self._reading = self._reading, None
        try:
            got = reading.result()
        except grpc.aio.AioRpcError as error:
            self._ended = _end_of(error.code(), error.details() or "")
            return self._ended
        if got is not _END:
            data: bytes = got
            return data
        self._ended = _end_of(await self._call.code(), await self._call.details() or "")
        return self._ended

    async def cancel(self) -> None:
        """Resets the stream and lets a read that is under way end."""
        self._call.cancel()
        if self._reading is not None:
            await asyncio.wait((self._reading,))
            if not self._reading.cancelled():
                self._reading.exception()
            self._reading = None


def _end_of(code: grpc.StatusCode, detail: str) -> Ended:
    """How a stream ended. Writing just after the picker ended it makes grpcio replace the status by one of its own."""
    if code is grpc.StatusCode.INTERNAL and detail == "Internal error from Core":
        return Ended(0, "ended before the last message was sent")
    return Ended(code.value[0], detail)


class Health:
    """The health service of a picker."""

    def __init__(self, on: grpc.aio.Channel, timeout_s: float):
        write, timeout = health_pb2.HealthCheckRequest.SerializeToString, timeout_s
        answer = health_pb2.HealthCheckResponse.FromString
        self._timeout_s = timeout
        self._check = on.unary_unary(_HEALTH + "Check", request_serializer=write, response_deserializer=answer)
        self._watch = on.unary_stream(_HEALTH + "Watch", request_serializer=write, response_deserializer=answer)
        self._list = on.unary_unary(
            _HEALTH + "List",
            request_serializer=health_pb2.HealthListRequest.SerializeToString,
            response_deserializer=health_pb2.HealthListResponse.FromString,
        )

    async def check(self, service: str) -> str:
        """Status name, or the name of the gRPC error."""
        try:
            answer = await self._check(health_pb2.HealthCheckRequest(service=service), timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    async def first_watched(self, service: str) -> str:
        """Status name of a watch's first answer, or the name of the gRPC error."""
        call = self._watch(health_pb2.HealthCheckRequest(service=service), timeout=self._timeout_s)
        try:
            answers: AsyncIterator[Any] = call.__aiter__()
            answer = await anext(answers)
        except StopAsyncIteration:
            return "nothing"
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        finally:
            call.cancel()
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    async def listed(self) -> list[str] | str:
        """Names of the services that are listed, or the name of the gRPC error."""
        try:
            answer = await self._list(health_pb2.HealthListRequest(), timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return sorted(answer.statuses)


def _same(data: bytes) -> bytes:
    return data

"""The reference front: the same calls over `grpc.aio`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Any

import grpc

from zerohop_picker.fronts import calls
from zerohop_picker.fronts.limits import SECOND_NS, Limits
from zerohop_picker.fronts.sockets import PathLock, SocketAccess, masked
from zerohop_picker.metrics import Metrics
from zerohop_picker.protocol.errors import StreamFault
from zerohop_picker.tls import KeyPair, Tls
from zerohop_process import log
from zerohop_process.address import Listen
from zerohop_process.errors import ConfigError

_logger = log.get("picker.grpcio")
_EOF: Any = grpc.aio.EOF

#: What is left of the drain timeout for telling those whose requests are not complete.
CUT_S = 0.05


class GrpcioFront:
    """Serves gRPC calls with one `grpc.aio` server per listener."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.open_streams = 0
        self._limits = limits
        self._servers: list[grpc.aio.Server] = []
        self._locks: list[PathLock] = []
        self._open: dict[calls.Call, _Pusher] = {}
        self._leaving = asyncio.Event()
        metrics.gauge("streams", "Open gRPC streams.", lambda: self.open_streams)
        self._ended = metrics.counters("streams_ended", "gRPC streams the picker ended, by gRPC status.", "status")
        self._reset = metrics.counter("streams_reset", "gRPC streams the gateway reset; Envoy does so routinely.")
        self._broken = metrics.counter("internal_errors", "Calls that failed inside the picker.")

    @property
    def connected(self) -> bool:
        """Whether a gateway may be connected; grpc.aio does not say."""
        return bool(self._servers)

    async def listen(
        self, where: Listen, services: calls.Services, *, access: SocketAccess, tls: Tls | None = None,
        reuse_port: bool = False,
    ) -> Listen:  # fmt: skip
        """Serve `services` at `where`; return where exactly. Raises: ConfigError."""
        server = grpc.aio.server(options=_options(self._limits, reuse_port=reuse_port))
        methods: Any = _Methods(self, services)
        server.add_generic_rpc_handlers([methods])
        if where.path is None:
            try:
                port = _add_port(server, str(where), tls)
            except RuntimeError:
                raise ConfigError(f"--listen {where}: cannot listen there; is the address in use?") from None
            host = where.address.host if where.address else ""
            bound = Listen.parse(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        else:
            self._add_unix(server, where.path, access, tls)
            bound = where
        await server.start()
        self._servers.append(server)
        return bound

    def _add_unix(self, server: grpc.aio.Server, path: str, access: SocketAccess, tls: Tls | None) -> None:
        lock = PathLock(path)
        self._locks.append(lock)
        lock.clear_stale()
        temporary = lock.temporary()
        with masked(0o177):
            try:
                _add_port(server, f"unix:{temporary}", tls)
            except RuntimeError:
                raise ConfigError(f"--listen unix:{path}: cannot create the socket in {Path(path).parent}") from None
        lock.publish(temporary, access)

    async def drain(self, timeout_s: float) -> int:
        """Send GOAWAY, take nothing new; return how many calls were still open after `timeout_s` and were cut."""
        self._leaving.set()
        stopping = asyncio.gather(*(server.stop(timeout_s) for server in self._servers))
        left = 0
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(stopping), max(0.0, timeout_s - CUT_S))
        left = self.open_streams
        for call, pusher in self._open.items():
            if call.awaiting_request:
                with contextlib.suppress(StreamFault):
                    pusher.push(call.refuse(*calls.LEAVING))
        await stopping
        self._servers.clear()
        return left

    async def close(self) -> None:
        """End everything and give every path up."""
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    async def serve(self, factory: calls.CallFactory, context: Any) -> None:
        """Serve one call to its end, however it ends."""
        call: calls.Call = calls.NO_CALL
        pusher = _Pusher(context)
        self.open_streams += 1
        ended = False
        try:
            metadata = {_bytes(name): _bytes(value) for name, value in context.invocation_metadata() or ()}
            call = factory(metadata, pusher.push)
            self._open[call] = pusher
            await self._exchange(call, context)
            ended = True
            self._ended.labels("0").increment()
        except StreamFault as fault:
            ended = True
            self._ended.labels(str(fault.grpc_status)).increment()
            await context.abort(_STATUS[fault.grpc_status], fault.message)
        except asyncio.CancelledError:
            raise
        except grpc.aio.UsageError:
            pass  # the peer reset the stream while we answered
        except Exception:
            ended = True
            self._broken.increment()
            _logger.exception("a call failed inside the picker")
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        finally:
            # Envoy resets most streams, which arrives here as a cancellation at any await: all accounting is here.
            self.open_streams -= 1
            if not ended:
                self._reset.increment()
            pusher.stop()
            self._open.pop(call, None)
            call.close()

    async def _exchange(self, call: calls.Call, context: Any) -> None:
        reading: asyncio.Future[Any] | None = None
        try:
            while not call.finished:
                reading = reading or asyncio.ensure_future(context.read())
                await asyncio.wait((reading,), timeout=self._patience_s(call))
                if not reading.done():
                    if not call.wake_ns:
                        await _write(context, call.refuse(408, "", "the request did not arrive in time"))
                        return
                    await _write(context, call.wake(monotonic_ns()))
                    continue
                message, reading = reading.result(), None
                if message is _EOF:
                    await _write(context, call.half_close(monotonic_ns()))
                    if not call.finished:
                        await self._leaving.wait()  # a Watch goes on until one side leaves
                        raise StreamFault("the picker is leaving", calls.UNAVAILABLE)
                else:
                    await _write(context, call.receive(message, monotonic_ns()))
        finally:
            if reading is not None:
                reading.cancel()

    def _patience_s(self, call: calls.Call) -> float | None:
        """Return how long to wait for the next message: a peer that owes us one may not stand still for ever."""
        if call.wake_ns:
            return max(0.0, (call.wake_ns - monotonic_ns()) / SECOND_NS + 0.0005)
        return self._limits.idle_stream_ns / SECOND_NS if call.awaiting_request else None


async def _write(context: Any, messages: Sequence[bytes]) -> None:
    for message in messages:
        await context.write(message)


class _Methods:
    """Finds the call of a method by its path; every method is a stream of raw bytes both ways."""

    def __init__(self, front: GrpcioFront, services: calls.Services) -> None:
        self._handlers = {path.decode(): _handler(front, factory) for path, factory in services.items()}

    def service(self, details: Any) -> Any:
        """Return the handler of the method asked for, None for one that is none of ours."""
        return self._handlers.get(details.method)


def _handler(front: GrpcioFront, factory: calls.CallFactory) -> Any:
    async def serve(requests: AsyncIterator[bytes], context: Any) -> None:  # noqa: ARG001
        await front.serve(factory, context)

    behaviour: Callable[..., Awaitable[None]] = serve
    return grpc.stream_stream_rpc_method_handler(behaviour)


class _Pusher:
    """Sends the messages of one call that come at a moment of our own choosing, in order."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._queue: asyncio.Queue[Sequence[bytes]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def push(self, messages: Sequence[bytes]) -> None:
        self._queue.put_nowait(messages)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _send(self) -> None:
        with contextlib.suppress(grpc.aio.UsageError):  # the peer has left, which the call itself will hear
            while True:
                await _write(self._context, await self._queue.get())


def _add_port(server: grpc.aio.Server, where: str, tls: Tls | None) -> int:
    if tls is None:
        return int(server.add_insecure_port(where))
    given = tls.pair

    def newest() -> Any:
        # Asked at every handshake: None keeps what is in use.
        nonlocal given
        if tls.pair is given:
            return None
        given = tls.pair
        return _certificates(given)

    credentials = grpc.dynamic_ssl_server_credentials(
        _certificates(given), newest, require_client_authentication=given.client_ca is not None
    )
    return int(server.add_secure_port(where, credentials))


def _certificates(pair: KeyPair) -> Any:
    return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], pair.client_ca)


def _options(limits: Limits, *, reuse_port: bool) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", limits.concurrent_streams),
        ("grpc.max_metadata_size", limits.header_list_bytes),
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.keepalive_time_ms", limits.ping_ns // 1_000_000),
        ("grpc.keepalive_timeout_ms", limits.ping_ns // 1_000_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


_STATUS = {code.value[0]: code for code in grpc.StatusCode}

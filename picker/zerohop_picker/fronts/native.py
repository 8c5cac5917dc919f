"""The native front: gRPC over libnghttp2 on asyncio, without grpcio."""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic_ns

from zerohop_picker.fronts import calls
from zerohop_picker.fronts.http2 import READ_BYTES
from zerohop_picker.fronts.limits import SECOND_NS, Limits
from zerohop_picker.fronts.native_connection import NativeConnection
from zerohop_picker.fronts.native_stream import NativeStream
from zerohop_picker.fronts.sockets import PathLock, SocketAccess, bind_tcp, bind_unix
from zerohop_picker.metrics import Metrics
from zerohop_picker.tls import Tls
from zerohop_process import log
from zerohop_process.address import Listen

_logger = log.get("picker.native")
SWEEP_S = 1.0
CLOSE_S = 0.5


class NativeFront:
    """Serves gRPC calls on any number of listeners. All of it runs on one event loop.

    Attributes:
        held_bytes: body bytes held by all open calls.
        queued_bytes: reply bytes that wait for peers to take them.
    """

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.held_bytes = self.queued_bytes = 0
        self.connections: set[NativeConnection] = set()
        self._servers: list[asyncio.Server] = []
        self._locks: list[PathLock] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None
        self._gone: asyncio.Event | None = None
        self._register(metrics)

    def _register(self, metrics: Metrics) -> None:
        metrics.gauge("connections", "Open gateway connections.", lambda: len(self.connections))
        metrics.gauge("streams", "Open gRPC streams.", lambda: self.open_streams)
        metrics.gauge("held_bytes", "Request bytes held by open streams.", lambda: self.held_bytes)
        self._ended = metrics.counters("streams_ended", "gRPC streams the picker ended, by gRPC status.", "status")
        self._reset = metrics.counter("streams_reset", "gRPC streams the gateway reset; Envoy does so routinely.")
        self._faults = metrics.counters("connection_faults", "Connections ended for a fault of the peer.", "reason")
        self._broken = metrics.counter("internal_errors", "Calls that failed inside the picker.")
        self._refused = metrics.counters("streams_refused", "Streams refused by a limit.", "limit")

    @property
    def open_streams(self) -> int:
        """How many calls are open."""
        return sum(len(connection.streams) for connection in self.connections)

    @property
    def connected(self) -> bool:
        """Whether a gateway is connected."""
        return bool(self.connections)

    async def listen(
        self, where: Listen, services: calls.Services, *, access: SocketAccess, tls: Tls | None = None,
        reuse_port: bool = False, flag: str = "--listen",
    ) -> Listen:  # fmt: skip
        """Serve `services` at `where`; return where exactly, with the port that port 0 became. Raises: ConfigError."""
        if where.path is not None:
            lock = PathLock(where.path)
            self._locks.append(lock)
            sock = bind_unix(lock, access)
        else:
            sock = bind_tcp(where, reuse_port=reuse_port, flag=flag)
        context = None if tls is None else tls.context
        timeout_s = None if tls is None else self.limits.handshake_ns / SECOND_NS
        loop = asyncio.get_running_loop()
        make = loop.create_unix_server if where.path is not None else loop.create_server
        server = await make(
            lambda: NativeConnection(self, services), sock=sock, ssl=context, ssl_handshake_timeout=timeout_s
        )
        self._servers.append(server)
        if self._sweeper is None:
            self._sweep()
        if where.path is not None:
            return where
        host, port = sock.getsockname()[:2]
        return Listen.parse(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    # Called by connections

    def admit(self, connection: NativeConnection) -> bool:
        """Return whether there is room for one more connection, and count it."""
        if len(self.connections) >= self.limits.connections:
            self.count_fault("too many connections")
            return False
        self.connections.add(connection)
        return True

    def forget(self, connection: NativeConnection) -> None:
        """Drop a connection that is gone."""
        self.connections.discard(connection)
        if self._gone is not None and not self.connections:
            self._gone.set()

    def hold(self, stream: NativeStream, held_bytes: int) -> None:
        """Note that `stream` now holds so many bytes, and make room when all together hold too much."""
        more = held_bytes - stream.held_bytes
        stream.held_bytes = held_bytes
        self.held_bytes += more
        stream.connection.held_bytes += more
        if more > 0 and self.held_bytes > self.limits.held_bytes:
            self._make_room()

    def queue(self, connection: NativeConnection, queued_bytes: int) -> bool:
        """Note how many reply bytes `connection` has queued; return whether it may go on.

        Bodies that were held become replies all at once, so much is no fault as long as all together hold little.
        """
        self.queued_bytes += queued_bytes - connection.queued_bytes
        connection.queued_bytes = queued_bytes
        limits = self.limits
        return queued_bytes <= limits.queued_bytes or self.queued_bytes + self.held_bytes <= limits.held_bytes

    def _make_room(self) -> None:
        # The connection that holds most pays, with its upload that stood still longest: no peer can push out another.
        while self.held_bytes > self.limits.held_bytes:
            greediest = max(self.connections, key=lambda connection: connection.held_bytes)
            holders = [stream for stream in greediest.streams.values() if stream.held_bytes]
            idlest = min(holders, key=lambda stream: stream.moved_ns)
            self._refused.labels("held_bytes").increment()
            idlest.refuse(503, "rejected-overloaded", "the endpoint picker holds too many request bodies; try again")
            asyncio.get_running_loop().call_soon(greediest.flush)

    def wake_at(self, wake_ns: int, stream: NativeStream) -> None:
        """Call `stream.wake` at a moment."""
        asyncio.get_running_loop().call_later(max(0.0, (wake_ns - monotonic_ns()) / SECOND_NS + 0.0005), stream.wake)

    def stream_over(self) -> None:
        """Note that a call has ended."""
        if self._drained is not None and not self.open_streams:
            self._drained.set()

    def count_idle(self) -> None:
        """Count an upload that stood still too long."""
        self._refused.labels("idle").increment()

    def count_fault(self, why: str) -> None:
        """Count a connection that ended for its peer's fault."""
        self._faults.labels(why).increment()
        log.event(_logger, "debug", "connection ended", reason=why)

    def count_reset(self) -> None:
        """Count a call that its peer ended."""
        self._reset.increment()

    def count_ended(self, status: int) -> None:
        """Count a call that we ended."""
        self._ended.labels(str(status)).increment()

    def count_broken(self) -> None:
        """Count a call that failed inside the picker."""
        self._broken.increment()

    # Life of the front

    def _sweep(self) -> None:
        now_ns = monotonic_ns()
        for connection in list(self.connections):
            connection.sweep(now_ns)
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    async def drain(self, timeout_s: float) -> int:
        """Take no new connections, ask peers to open no new streams, and wait for the open ones to end.

        Returns how many calls were still open after `timeout_s` and were cut.
        """
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.drain()
        self._drained = asyncio.Event()
        self.stream_over()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._drained.wait()
        left = self.open_streams
        for connection in list(self.connections):
            connection.refuse_unfinished()
        return left

    async def close(self) -> None:
        """End every connection and give every path up."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.close()
        self._gone = asyncio.Event()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._gone.wait()
        for connection in list(self.connections):
            connection.abort()
        for lock in self._locks:
            lock.release()
        self._locks.clear()

"""One HTTP/2 connection of the native front: libnghttp2's state machine between a socket and gRPC calls.

Everything happens inside the callback of one read: frames in, messages out of them, decisions, replies, one write.
"""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic_ns
from typing import TYPE_CHECKING, cast

from ngh2 import (
    Connection,
    ConnectionClosed,
    DataReceived,
    ErrorCode,
    Header,
    NGH2Error,
    PingAcknowledged,
    PingReceived,
    RequestReceived,
    Role,
    SettingsReceived,
    StreamClosed,
    TrailersReceived,
)

from zerohop_picker.fronts import calls
from zerohop_picker.fronts.authority import AuthorityFilter
from zerohop_picker.fronts.http2 import CONNECTION_WINDOW_BYTES, ControlBudget, configuration, name_of, settings
from zerohop_picker.fronts.limits import MIB, SECOND_NS, Limits
from zerohop_picker.fronts.native_stream import NativeStream
from zerohop_picker.protocol.errors import StreamFault

if TYPE_CHECKING:
    from zerohop_picker.fronts.native import NativeFront

NOT_GRPC: list[Header] = [(b":status", b"415")]
# How long a connection that we end may take to read what was said to it.
LINGER_NS = SECOND_NS


class NativeConnection(asyncio.BufferedProtocol):
    """Serves the calls of one peer. A fault of the peer ends its stream, or this connection, and nothing else."""

    def __init__(self, front: NativeFront, services: calls.Services) -> None:
        self.streams: dict[int, NativeStream] = {}
        self.held_bytes = self.queued_bytes = 0
        self.opened_ns = self.heard_ns = monotonic_ns()
        self.last_stream_id = 0
        self.front = front
        self._services = services
        self.limits: Limits = front.limits
        self.h2 = Connection(Role.SERVER, configuration(front.limits))
        self._authority = AuthorityFilter()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._ping_sent_ns = 0
        self._control = ControlBudget(front.limits, self.opened_ns)
        self.ended: list[NativeStream] = []
        self._draining = False
        self._left_ns = 0

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer, or turn it away when there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        if not self.front.admit(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=4 * MIB, low=MIB)
        self.h2.initiate_connection(settings(self.limits))
        self.h2.set_local_window_size(CONNECTION_WINDOW_BYTES)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Close every call of the peer that has left."""
        self._transport = None
        self.front.queue(self, 0)
        self.front.forget(self)
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.release()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the front's read buffer: a read is used up before the next one starts."""
        return self.front.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Serve what was just read."""
        self.received(self.front.read_buffer[:nbytes])

    def eof_received(self) -> bool:
        """Let the transport close: a gateway that half-closes a connection has left it."""
        return False

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read: what it asks for would pile up here."""
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()
            self.flush()

    # HTTP/2's side

    def received(self, data: memoryview | bytes) -> None:
        """Serve the next bytes of the connection."""
        h2 = self.h2
        streams = self.streams
        if self._authority.looking:
            data = self._authority.feed(data)
        try:
            h2.receive_data(data)
        except NGH2Error as error:
            self._fault(str(error))
            return
        self.heard_ns = now_ns = monotonic_ns()
        for event in h2.events():
            kind = type(event)
            if kind is DataReceived:
                stream = streams.get(event.stream_id)  # type: ignore[attr-defined]
                if stream is not None:
                    stream.data(event.data, now_ns)  # type: ignore[attr-defined]
                    if event.end_stream:  # type: ignore[attr-defined]
                        stream.half_closed(now_ns)
            elif kind is RequestReceived:
                self._request(cast("RequestReceived", event), now_ns)
            elif kind is StreamClosed:
                stream = streams.pop(event.stream_id, None)  # type: ignore[attr-defined]
                if stream is not None:
                    self.front.count_reset()
                    stream.release()
            elif kind is PingReceived or kind is SettingsReceived:
                if not self._control.take(now_ns):
                    self._fault("too many PING or SETTINGS frames")
                    return
            elif kind is PingAcknowledged:
                self._ping_sent_ns = 0
                if self._draining:
                    h2.send_goaway(0, last_stream_id=self.last_stream_id)
            elif kind is TrailersReceived:
                stream = streams.get(event.stream_id)  # type: ignore[attr-defined]
                if stream is not None:
                    stream.half_closed(now_ns)
        self.flush()

    def flush(self) -> None:
        """Write what is ready, as far as the peer reads."""
        if self._paused or self._transport is None:
            return
        try:
            data = self.h2.data_to_send()
            if data:
                self._transport.write(data)
            if self.ended:
                self._tell_ended()
            if not self.h2.want_read and not self.h2.want_write:
                self._closed()
                return
            queued_bytes = self.h2.queued_body_size()
            if queued_bytes != self.queued_bytes and not self.front.queue(self, queued_bytes):
                self._fault("the peer does not take its replies")
        except NGH2Error as error:
            self._fault(str(error))

    def _closed(self) -> None:
        # Either side's GOAWAY has been said and nothing is open any more.
        for event in self.h2.events():
            if type(event) is ConnectionClosed and event.error_code != ErrorCode.NO_ERROR:
                self.front.count_fault(name_of(event.error_code))
        self._leave()

    def _tell_ended(self) -> None:
        # A call we ended may still have a peer that sends; RFC 9113 8.1 and gRPC's own servers end it with NO_ERROR.
        ended, self.ended = self.ended, []
        for stream in ended:
            if not stream.peer_ended and not self.h2.queued_body_size(stream.stream_id):
                self.h2.reset_stream(stream.stream_id, ErrorCode.NO_ERROR)
        data = self.h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    def _request(self, event: RequestReceived, now_ns: int) -> None:
        stream_id = event.stream_id
        self.last_stream_id = stream_id
        metadata = dict(event.headers)
        if metadata.get(b":method") != b"POST" or not metadata.get(b"content-type", b"").startswith(
            b"application/grpc"
        ):
            with contextlib.suppress(NGH2Error):  # reset within the same read
                self.h2.send_response(stream_id, NOT_GRPC, end_stream=True)
            return
        stream = self.streams[stream_id] = NativeStream(self, stream_id, now_ns)
        factory = self._services.get(metadata[b":path"])
        try:
            if factory is None:
                raise StreamFault(f"no method {metadata[b':path'].decode('latin-1')}", calls.UNIMPLEMENTED)
            stream.call = factory(metadata, stream.push)
        except StreamFault as fault:
            stream.end(fault.grpc_status, fault.message)
            return
        if event.end_stream:
            stream.half_closed(now_ns)

    # Life of the connection

    def sweep(self, now_ns: int) -> None:
        """Look for a peer that fell silent and for uploads that stand still. Called about once a second."""
        limits = self.limits
        if self._left_ns:
            if now_ns - self._left_ns > LINGER_NS:
                self.abort()  # it does not even read what is left for it
            return
        if not self.last_stream_id and now_ns - self.opened_ns > limits.handshake_ns and not self._greeted():
            self._fault("no HTTP/2 greeting")
            return
        silent_since = self._ping_sent_ns or self.heard_ns
        if now_ns - silent_since > limits.ping_ns:
            if self._ping_sent_ns:
                self._fault("the peer does not answer PING")
                return
            self._ping_sent_ns = now_ns
            self.h2.ping(b"zerohop!")
        for stream in list(self.streams.values()):
            if now_ns - stream.moved_ns > limits.idle_stream_ns and stream.call.awaiting_request:
                self.front.count_idle()
                stream.refuse(408, "", "the request did not arrive in time")
        self.flush()

    def drain(self) -> None:
        """Tell the peer to open no more streams here, and go on serving those it has."""
        if self._draining or self._transport is None:
            return
        self._draining = True
        for stream in list(self.streams.values()):
            if stream.peer_ended:  # it waits for news (a health Watch), and would wait for ever
                stream.end(calls.UNAVAILABLE, "the picker is leaving")
        try:
            # The first GOAWAY names no last stream; the second, once this PING comes back, names the real one, so that
            # no stream in flight between the two is lost (RFC 9113 6.8).
            self.h2.send_shutdown_notice()
            self.h2.ping(b"draining")
        except NGH2Error as error:
            self._fault(str(error))
            return
        self.flush()

    def refuse_unfinished(self) -> None:
        """Answer requests that are still being sent, because we can wait no longer."""
        for stream in list(self.streams.values()):
            if stream.call.awaiting_request:
                stream.refuse(*calls.LEAVING)
        self.flush()

    def close(self) -> None:
        """End the connection now, with whatever is still open on it."""
        if self._transport is None:
            return
        try:
            self.h2.terminate_connection(ErrorCode.NO_ERROR)
            self._transport.write(self.h2.data_to_send())
        except NGH2Error:
            pass
        self._leave()

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _greeted(self) -> bool:
        return self.heard_ns != self.opened_ns

    def _fault(self, why: str) -> None:
        """End the connection for a fault of the peer."""
        self.front.count_fault(why)
        transport = self._transport
        if transport is None:
            return
        try:
            self.h2.terminate_connection(ErrorCode.ENHANCE_YOUR_CALM)
            transport.write(self.h2.data_to_send())
        except NGH2Error:
            pass  # the state machine is past speaking
        self._leave()

    def _leave(self) -> None:
        """Close once the peer has read what was written; `sweep` cuts the connection if it does not."""
        self._left_ns = self._left_ns or monotonic_ns()
        if self._transport is not None:
            self._transport.abort() if self._paused else self._transport.close()

"""One gRPC call of the native front: bytes of its DATA frames in, framed replies and trailers out."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING
from urllib.parse import quote

from ngh2 import Header, NGH2Error

from zerohop_picker.fronts import calls
from zerohop_picker.fronts.calls import Call
from zerohop_picker.fronts.framing import FramingError, MessageReader, frame
from zerohop_picker.protocol.errors import StreamFault
from zerohop_process import log

if TYPE_CHECKING:
    from zerohop_picker.fronts.native_connection import NativeConnection

_logger = log.get("picker.native")

RESPONSE_HEADERS: list[Header] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
TRAILERS_OK: list[Header] = [(b"grpc-status", b"0")]
SINGLE_PIECE_BYTES = 64 * 1024


class NativeStream:
    """Serves one call. It is over once it has left its connection's `streams`, and its call is closed then."""

    __slots__ = ("_answered", "_reader", "call", "connection", "held_bytes", "moved_ns", "peer_ended", "stream_id")

    def __init__(self, connection: NativeConnection, stream_id: int, now_ns: int) -> None:
        self.connection = connection
        self._reader = MessageReader(connection.limits.message_bytes)
        self._answered = False
        self.stream_id = stream_id
        self.call: Call = calls.NO_CALL
        self.peer_ended = False
        self.held_bytes = 0
        self.moved_ns = now_ns

    def data(self, data: bytes, received_ns: int) -> None:
        """Serve the next bytes of the call, which were read at `received_ns`."""
        call = self.call
        try:
            for message in self._reader.feed(data):
                replies = call.receive(message, monotonic_ns())
                if replies:
                    self.send(replies)
                if call.finished:
                    self.end(calls.OK, "")
                    return
        except StreamFault as fault:
            self.end(fault.grpc_status, fault.message)
            return
        except FramingError as error:
            if error.announced_bytes:
                self.refuse(413, "", f"request of {error.announced_bytes} bytes is too large")
            else:
                self.end(error.status, str(error))
            return
        except Exception:
            self._broken()
            return
        self.moved_ns = received_ns
        if call.wake_ns:
            self.connection.front.wake_at(call.wake_ns, self)
        held = call.held_bytes + self._reader.held_bytes
        if held != self.held_bytes:
            self.connection.front.hold(self, held)

    def half_closed(self, now_ns: int) -> None:
        """Serve the end of what the peer sends."""
        if self.stream_id not in self.connection.streams:
            return
        self.peer_ended = True
        try:
            if self._reader.held_bytes:
                raise StreamFault("the stream ended within a message", calls.INTERNAL)
            replies = self.call.half_close(now_ns)
            if replies:
                self.send(replies)
            if self.call.finished:
                self.end(calls.OK, "")
        except StreamFault as fault:
            self.end(fault.grpc_status, fault.message)
        except Exception:
            self._broken()

    def wake(self) -> None:
        """Have the call say what it has to say once its time has come."""
        now_ns = monotonic_ns()
        if not 0 < self.call.wake_ns <= now_ns or self.stream_id not in self.connection.streams:
            return
        try:
            self.send(self.call.wake(now_ns))
            if self.call.finished:
                self.end(calls.OK, "")
        except Exception:
            self._broken()
        self.flush()

    def send(self, replies: Sequence[bytes]) -> None:
        """Queue replies; the connection writes them at its next flush."""
        h2, stream_id = self.connection.h2, self.stream_id
        try:
            if not self._answered:
                self._answered = True
                h2.send_response(stream_id, RESPONSE_HEADERS)
            if len(replies) == 1 and len(replies[0]) < SINGLE_PIECE_BYTES:
                reply = replies[0]
                h2.send_data(stream_id, b"\x00" + len(reply).to_bytes(4, "big") + reply)
            else:
                for piece in frame(replies):
                    h2.send_data(stream_id, piece)
        except NGH2Error:
            # The peer reset the stream in the very bytes that are being served. That ends this stream alone.
            self.over()

    def push(self, replies: Sequence[bytes]) -> None:
        """Send replies at a moment of our own choosing."""
        if self.stream_id in self.connection.streams:
            self.send(replies)
            self.connection.flush()

    def end(self, status: int, message: str) -> None:
        """End the call with a gRPC status."""
        trailers = TRAILERS_OK
        if status:
            trailers = [
                (b"grpc-status", str(status).encode()),
                (b"grpc-message", quote(message, safe=" ,:;'").encode()),
            ]
        h2 = self.connection.h2
        try:
            if not self._answered:
                self._answered = True
                h2.send_response(self.stream_id, RESPONSE_HEADERS)
            h2.send_trailers(self.stream_id, trailers)
            self.connection.ended.append(self)
        except NGH2Error:
            pass  # reset meanwhile, as in `send`
        self.connection.front.count_ended(status)
        self.over()

    def refuse(self, status: int, reason: str, message: str) -> None:
        """Answer with an HTTP status instead of a pick, and end the call. The caller flushes."""
        try:
            self.send(self.call.refuse(status, reason, message))
        except StreamFault as fault:
            self.end(fault.grpc_status, fault.message)
            return
        if self.stream_id in self.connection.streams:
            self.end(calls.OK, "")

    def flush(self) -> None:
        """Have the connection write what it can."""
        self.connection.flush()

    def over(self) -> None:
        """Leave the connection and release everything. Idempotent."""
        if self.connection.streams.pop(self.stream_id, None) is not None:
            self.release()

    def release(self) -> None:
        """Close the call of a stream that has left its connection."""
        if self.held_bytes:
            self.connection.front.hold(self, 0)
        self.call.close()
        self.connection.front.stream_over()

    def _broken(self) -> None:
        self.connection.front.count_broken()
        _logger.exception("a call failed inside the picker")
        self.end(calls.INTERNAL, "internal error")

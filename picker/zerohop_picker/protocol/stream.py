"""One ext-proc stream, sans-IO: serialised ProcessingRequests in, serialised ProcessingResponses out.

    stream = ExtProcStream(core, pool=None)
    replies = stream.receive(message, now_ns, received_ns)   # write them in this order
    if stream.finished:                                      # then end the stream with status OK
        ...
    stream.close()                                           # always, in `finally`; more than once does no harm

The front owns sockets, gRPC framing, timers and logs. `table` owns the transitions.
"""

from __future__ import annotations

from collections.abc import Mapping

from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_picker.protocol import metadata, replies
from zerohop_picker.protocol.core import ProtocolCore
from zerohop_picker.protocol.errors import PeerError, StreamFault
from zerohop_picker.protocol.request_side import RequestSide
from zerohop_picker.protocol.response_side import ECHOED_MODES, ResponseSide
from zerohop_picker.protocol.table import State
from zerohop_picker.protocol.wire import (
    REQUEST_BODY,
    REQUEST_HEADERS,
    RESPONSE_BODY,
    Body,
    body_of,
    parse,
    read_body,
    read_request_headers,
)
from zerohop_picker.request.headers import read_headers
from zerohop_picker.scheduling_contract import Outcome, Refusal

__all__ = ["ExtProcStream", "StreamFault"]

# Looked up once: an enum member by name costs more than what is done with it.
_OPEN, _ACKING, _PEEKING, _DONE = State.OPEN, State.ACKING, State.PEEKING, State.DONE


class ExtProcStream:
    """One HTTP exchange between a gateway and the picker."""

    __slots__ = ("_core", "_request", "_response", "_response_mode", "_silent", "_ticket_done", "finished", "wake_ns")

    def __init__(self, core: ProtocolCore, pool: str | None = None):
        core.counters.streams += 1
        self._core = core
        self._request = RequestSide(core, pool)
        self._response: ResponseSide | None = None
        self._response_mode: int = pb.NONE
        self._silent = False
        self._ticket_done = False
        #: The stream is to be ended with status OK once the replies are written.
        self.finished = False
        #: When not 0: the moment at which the front should call `wake`, unless another message comes before.
        self.wake_ns = 0

    @property
    def awaiting_request(self) -> bool:
        """Whether the gateway owes what a decision needs, so that standing still is a fault of its side.

        After the decision a request may go on for hours (a WebSocket, a slow upload that is not held).
        """
        return not self.finished and self._request.decision is None

    @property
    def held_bytes(self) -> int:
        """Bytes of request body held now."""
        return self._request.held.size_bytes

    @property
    def picked(self) -> str | None:
        """The first endpoint of the pick, for a log line; None before it."""
        decision = self._request.decision
        return None if decision is None else decision.endpoints[0]

    def receive(self, message: bytes, now_ns: int, received_ns: int = 0) -> list[bytes]:
        """Replies to one message, in wire order; none when it needs none, or once the stream is finished.

        `now_ns` and `received_ns` are CLOCK_MONOTONIC; the second is when the message's last byte was read (default:
        now). What lies between counts against the deadline.

        Raises:
            StreamFault: the message is not of the protocol; end the stream with its gRPC status.
        """
        if self.finished:
            return []
        request = self._request
        request.now_ns, request.received_ns = now_ns, received_ns or now_ns
        self.wake_ns = 0
        tag = message[0] if message else 0
        try:
            if tag == RESPONSE_BODY:
                out = self._on_response_body(read_body(message))
            elif tag == REQUEST_BODY:
                out = self._on_request_body(read_body(message))
            elif tag == REQUEST_HEADERS and (headers := read_request_headers(message)) is not None:
                self._take(context := metadata.read_context(headers.rest))
                out = [] if self._silent else self._on_request_headers(headers.values, headers.end, context)
            else:
                out = self._on_parsed(parse(pb.ProcessingRequest, message))
        except PeerError as error:
            return self._refuse(error.refusal)
        self._leave_when_through()
        return out

    def wake(self, now_ns: int) -> list[bytes]:
        """Replies once `wake_ns` has passed: headers came, no body did, and it is not needed (or was not announced)."""
        self.wake_ns = 0
        if self.finished or not self._request.waits_for_first_chunk:
            return []
        self._request.now_ns = self._request.received_ns = now_ns
        try:
            return self._request.decide_now()
        except PeerError as error:
            return self._refuse(error.refusal)

    def half_close(self, now_ns: int) -> list[bytes]:
        """The gateway will send no more; nothing is left to say then. `now_ns` as in `receive`."""
        del now_ns
        self.finished = True
        return []

    def refuse(self, status: int, reason: str, message: str) -> list[bytes]:
        """Replies that refuse the request for a reason of the front's own (a cap, draining); 503 asks to try again."""
        return [] if self.finished else self._refuse(Refusal(status, reason, message, 1 if status == 503 else None))

    def close(self) -> None:
        """Releases what the stream holds, and its place in the in-flight counts. Idempotent."""
        self.finished = True
        self._request.held.release()
        decision = self._request.decision
        if decision is not None and not self._ticket_done:
            self._ticket_done = True
            decision.ticket.finish(self._outcome())

    def _on_parsed(self, message: pb.ProcessingRequest) -> list[bytes]:
        """A message that the protobuf runtime has read."""
        kind = message.WhichOneof("request")
        self._take(context := metadata.context_of(message))
        if self._silent or kind is None:
            return []  # kinds of message that are newer than this code are not answered
        if kind == "request_headers":
            headers = message.request_headers
            return self._on_request_headers(read_headers(headers.headers.headers), headers.end_of_stream, context)
        if kind == "request_body":
            return self._request.on_body(body_of(message.request_body))
        if kind == "request_trailers":
            return self._request.on_trailers()
        if kind == "response_headers":
            return self._response_side().on_headers(message)
        if kind == "response_body":
            return self._response_side().on_body(body_of(message.response_body))
        return self._response_side().on_trailers()

    def _on_request_headers(self, headers: Mapping[str, str], end: bool, context: metadata.Context) -> list[bytes]:
        request = self._request
        out = request.on_headers(headers, end=end)
        if request.state is _PEEKING or (context.modes is None and request.waits_for_first_chunk):
            self.wake_ns = request.received_ns + self._core.settings.deadline_ns
        return out

    def _on_request_body(self, body: Body) -> list[bytes]:
        if rest := body.rest:
            self._take(metadata.read_context(rest))
        return [] if self._silent else self._request.on_body(body)

    def _on_response_body(self, body: Body) -> list[bytes]:
        return [] if self._silent else (self._response or self._response_side()).on_body(body)

    def _response_side(self) -> ResponseSide:
        if self._response is None:
            self._response = ResponseSide(self._core, self._response_mode, self._request.decision)
        return self._response

    def _take(self, context: metadata.Context) -> None:
        """Takes what a message says beside its headers or body.

        A gateway that states no modes on its first message speaks the endpoint picker protocol's own,
        FULL_DUPLEX_STREAMED. (Envoy states them since 1.33, also where both are NONE.) In case it shows no body after
        all, `wake_ns` bounds the wait.
        """
        request = self._request
        if context.modes is not None:
            request.mode, self._response_mode = context.modes
            request.response_mode = self._response_mode
        elif request.state is _OPEN and self._response is None:
            request.mode = self._response_mode = request.response_mode = pb.FULL_DUPLEX_STREAMED
        if context.observability:
            self._silent = True  # the gateway reads no replies, so nothing would come of a decision
        if context.subset is not None:
            request.take_subset(context.subset)

    def _refuse(self, refusal: Refusal) -> list[bytes]:
        refused = self._core.counters.refusals
        key = (refusal.status, refusal.reason)
        refused[key] = refused.get(key, 0) + 1
        self._request.held.release()
        self.finished = True
        return [replies.immediate(refusal, grpc=self._request.grpc)]

    def _leave_when_through(self) -> None:
        """Finishes the stream as early as no byte of the exchange can be lost by it.

        The request must be through. (STREAMED counts as through once its headers are answered: Envoy keeps the chunks
        that it has sent.) The response must be through, or not wanted and not begun; an echo goes on to its end.

        A body of many chunks takes a while to reach the gateway, and the model server (or the gateway itself, with a
        503 for a server that died) may answer meanwhile: where that answer is to be echoed, the stream stays for it.
        """
        state = self._request.state
        if (state is not _DONE and state is not _ACKING and state is not _OPEN) or self._silent:
            return
        response = self._response
        if response is None:
            request = self._request
            crossed = request.in_chunks or not self._core.settings.ends_in_one_write
            stays = (crossed and self._response_mode in ECHOED_MODES) or self._core.stays(request.decision)
            self.finished = state is not _OPEN and not stays
        elif response.state is _DONE:
            self.finished = state is not _ACKING
        elif not response.must_be_echoed:
            self.finished = not self._core.observes

    def _outcome(self) -> Outcome:
        if self._response is not None:
            return self._response.outcome()
        return Outcome.ABORTED if self._core.observes else Outcome.UNOBSERVED

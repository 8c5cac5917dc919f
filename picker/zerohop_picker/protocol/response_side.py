"""The response's direction of one stream: passed through unchanged, looked at where someone wants to know."""

from __future__ import annotations

from typing import Any

from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_picker.protocol import metadata, replies
from zerohop_picker.protocol.core import ProtocolCore
from zerohop_picker.protocol.errors import StreamFault
from zerohop_picker.protocol.table import RESPONSE, Event, State
from zerohop_picker.protocol.wire import Body
from zerohop_picker.request import headers as names
from zerohop_picker.scheduling_contract import Decision, Outcome

#: The last event of an OpenAI token stream. A client may hang up as soon as it has read it (vllm-project/aibrix#2224).
_DONE_EVENT = b"data: [DONE]"
#: Body modes in which what is not sent back is lost.
ECHOED_MODES = (pb.FULL_DUPLEX_STREAMED, pb.GRPC)


class ResponseSide:
    """State of the response. Its actions are named by `table.RESPONSE` and return replies in wire order."""

    __slots__ = ("_complete", "_core", "_decision", "_seen_bytes", "_status", "_tail", "mode", "served", "state")

    def __init__(self, core: ProtocolCore, mode: int, decision: Decision | None):
        self._core = core
        self._decision = decision
        self.mode = mode
        self.state = State.OPEN
        #: The endpoint that served, as the gateway reports it.
        self.served: str | None = None
        self._status = ""
        self._seen_bytes = False
        self._complete = False
        self._tail = b""

    def on_headers(self, message: pb.ProcessingRequest) -> list[bytes]:
        """Replies to the headers."""
        self._status = _status_of(message.response_headers.headers)
        self.served = metadata.served_endpoint(message.metadata_context)
        if self.served is not None and self._decision is not None:
            self._core.counters.count_served(self._decision.endpoints[0], self.served)
            self._decision.ticket.served(self.served)
        if message.response_headers.end_of_stream or self.mode == pb.NONE:
            self._complete = message.response_headers.end_of_stream
            return self._step(Event.HEADERS_LAST, message)
        return self._step(Event.HEADERS_THEN_ECHO if self.mode in ECHOED_MODES else Event.HEADERS_THEN_ACK, message)

    def on_body(self, body: Body) -> list[bytes]:
        """Replies to one body message: at once, nothing is held."""
        if self._decision is not None:
            self._look_at(body, self._decision)
        return self._step(Event.BODY_END if body.end else Event.BODY, body)

    def on_trailers(self) -> list[bytes]:
        """Replies to the trailers."""
        self._complete = True
        return self._step(Event.TRAILERS, None)

    @property
    def must_be_echoed(self) -> bool:
        """Whether leaving now would lose body bytes that the gateway has handed over or will."""
        return self.state is State.ECHOING or (self.state is State.OPEN and self.mode in ECHOED_MODES)

    def outcome(self) -> Outcome:
        """How the response ended, if the stream ends now."""
        if self._status.startswith("5"):
            return Outcome.SERVER_ERROR
        if self._complete:
            return Outcome.COMPLETE
        return Outcome.UNOBSERVED if self.state is State.DONE else Outcome.ABORTED

    def _look_at(self, body: Body, decision: Decision) -> None:
        data = body.data
        if not len(data):
            self._complete = self._complete or body.end
            return
        if not self._seen_bytes:
            self._seen_bytes = True
            decision.ticket.first_token()
        tail = self._tail + bytes(data[-_TAIL_BYTES:]) if len(data) < _TAIL_BYTES else bytes(data[-_TAIL_BYTES:])
        self._complete = self._complete or body.end or _DONE_EVENT in tail
        self._tail = tail[-_TAIL_BYTES:]

    def _step(self, event: Event, payload: Any) -> list[bytes]:
        row = _ROWS.get((self.state, event))
        if row is None:
            raise StreamFault(f"response {event.name.lower()} not expected while {self.state.name.lower()}")
        out: list[bytes] = row[0](self, payload)
        self.state = row[1]
        return out

    # Actions.

    def _answer_response_headers(self, message: pb.ProcessingRequest) -> list[bytes]:
        mutation = b""
        if self._decision is not None:
            mutation = b"".join(replies.set_header(name, value) for name, value in self._decision.response_headers)
        if self._core.settings.conformance_headers:
            told = metadata.served_or_why_not(message.metadata_context)
            mutation += replies.set_header(names.TEST_SERVED, told.encode())
        if not mutation:
            return [replies.EMPTY[replies.RESPONSE_HEADERS]]
        return [replies.headers_reply(replies.RESPONSE_HEADERS, mutation)]

    def _echo_response_body(self, body: Body) -> list[bytes]:
        chunk_bytes = None if self.mode == pb.GRPC else self._core.settings.chunk_bytes
        return replies.echoes(replies.RESPONSE_BODY, body, chunk_bytes)

    def _ack_response_body(self, _: Body) -> list[bytes]:
        return [replies.EMPTY[replies.RESPONSE_BODY]]

    def _echo_or_ack_response_body(self, body: Body) -> list[bytes]:
        return self._echo_response_body(body) if self.mode in ECHOED_MODES else self._ack_response_body(body)

    def _ack_response_trailers(self, _: None) -> list[bytes]:
        return [replies.RESPONSE_TRAILERS]

    def _ignore_repeated_end(self, _: Body) -> list[bytes]:
        self._core.counters.repeated_ends += 1
        return []


#: The table with its actions looked up.
_ROWS = {key: (getattr(ResponseSide, name), state) for key, (name, state) in RESPONSE.items()}

#: Enough to see the last event whole when it is cut over two chunks, with the blank line after it.
_TAIL_BYTES = 2 * len(_DONE_EVENT)


def _status_of(headers: pb.HeaderMap) -> str:
    """`:status` (what Envoy sends) or `status` (what others do)."""
    for item in headers.headers:
        if item.key.lower() in (":status", "status"):
            return item.raw_value.decode("latin-1") or item.value
    return ""

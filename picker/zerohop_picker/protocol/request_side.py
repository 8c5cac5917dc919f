"""The request's direction of one stream: from headers and body to a destination, a refusal, and the body passed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerohop_picker._pb.extproc_pb2 import BUFFERED_PARTIAL, FULL_DUPLEX_STREAMED, GRPC, NONE, STREAMED
from zerohop_picker.protocol import refusals, replies
from zerohop_picker.protocol.core import ProtocolCore
from zerohop_picker.protocol.errors import PeerError, StreamFault
from zerohop_picker.protocol.held_body import HeldBody, check_announced_size
from zerohop_picker.protocol.table import REQUEST, Event, State
from zerohop_picker.protocol.wire import Body
from zerohop_picker.request import headers as names
from zerohop_picker.request.body import splice_model
from zerohop_picker.request.build import NO_LINE, read_line
from zerohop_picker.request.paths import BodyNeed
from zerohop_picker.scheduling_contract import Decision

_NOTHING = BodyNeed.NOTHING


class RequestSide:
    """State of the request. Its actions are named by `table.REQUEST` and return replies in wire order."""

    __slots__ = (
        "_core",
        "_headers",
        "_line",
        "_model",
        "_own_id",
        "_subset",
        "decision",
        "grpc",
        "held",
        "in_chunks",
        "mode",
        "now_ns",
        "pool",
        "received_ns",
        "response_mode",
        "state",
    )

    def __init__(self, core: ProtocolCore, pool: str | None):
        self._core = core
        self.pool = pool
        self.state = State.OPEN
        self.mode: int = NONE
        self.response_mode: int = NONE
        self.now_ns = self.received_ns = 0
        #: Set once an endpoint was picked.
        self.decision: Decision | None = None
        #: What came of a body that is not passed on yet.
        self.held = HeldBody(core)
        #: The body went back in more chunks than one, which do not reach the gateway at one moment.
        self.in_chunks = False
        #: Whether the client speaks gRPC, which wants its own status in an immediate response.
        self.grpc = False
        self._headers: Mapping[str, str] = {}
        self._model: str | None = None
        self._own_id: str | None = None
        self._line = NO_LINE
        self._subset: tuple[str, ...] | None = None

    # Events.

    def on_headers(self, headers: Mapping[str, str], *, end: bool) -> list[bytes]:
        """Replies to the headers, once `mode` is set. `headers` as in `LLMRequest`."""
        self._headers = headers
        self._line = line = read_line(headers)
        self.grpc = line.content_type.startswith("application/grpc")
        modes = self._core.counters.modes
        modes[self.mode] = modes.get(self.mode, 0) + 1
        return self.step(self._plan(end=end), None)

    def on_body(self, body: Body) -> list[bytes]:
        """Replies to one body message."""
        return self.step(Event.BODY_END if body.end else Event.BODY, body)

    def on_trailers(self) -> list[bytes]:
        """Replies to the trailers."""
        return self.step(Event.TRAILERS, None)

    def step(self, event: Event, payload: Any) -> list[bytes]:
        """One row of the table.

        Raises:
            StreamFault: the table has no such row.
            PeerError: the request is refused.
        """
        row = _ROWS.get((self.state, event))
        if row is None:
            raise StreamFault(f"request {event.name.lower()} not expected while {self.state.name.lower()}")
        out: list[bytes] = row[0](self, payload)
        self.state = row[1]
        return out

    def take_subset(self, hint: tuple[str, ...] | None) -> None:
        """Takes the hint of one message. Headers and bodies may both carry it; the last that names anything wins."""
        if hint or (hint is not None and not self._subset):
            self._subset = hint

    @property
    def waits_for_first_chunk(self) -> bool:
        """Whether headers came, nothing was decided, and no body was seen yet."""
        return self.state in (State.PEEKING, State.HOLDING) and not self.held.size_bytes

    def decide_now(self) -> list[bytes]:
        """Replies when the body is not waited for any longer: decides by the headers; later chunks are echoed."""
        out = self._decide_on_headers(None)
        self.state = State.ECHOING
        return out

    def _plan(self, *, end: bool) -> Event:
        """Which row of the table the headers take."""
        mode = self.mode
        if end:
            return Event.HEADERS_ONLY
        needed = self._line.route.need is not _NOTHING
        if mode == FULL_DUPLEX_STREAMED:
            if not needed:
                # A gRPC call or a WebSocket may send nothing before it has an answer.
                at_once = self.grpc or self._line.method not in ("POST", "PUT", "PATCH")
                return Event.HEADERS_THEN_ECHO if at_once else Event.HEADERS_THEN_PEEK
            check_announced_size(self._headers, self._core.settings.max_request_bytes)
            return Event.HEADERS_THEN_HOLD
        if mode == NONE:
            return Event.HEADERS_THEN_BUFFER if needed and self._core.settings.ask_for_body else Event.HEADERS_ONLY
        if mode == STREAMED:
            return Event.HEADERS_THEN_ACK
        if mode == GRPC:
            return Event.HEADERS_THEN_ECHO
        check_announced_size(self._headers, self._core.settings.max_request_bytes)
        return Event.HEADERS_THEN_BUFFER

    # Actions.

    def _keep_headers(self, _: None) -> list[bytes]:
        return []

    def _ask_for_body(self, _: None) -> list[bytes]:
        """An answer without a destination, on which the gateway sends the body. A client's own destination goes now."""
        extra = b""
        if self.mode == NONE:
            stays = self._core.stays(None)
            extra = replies.mode_override(buffered=True, response_body_mode=self.response_mode if stays else None)
        return [replies.headers_reply(replies.REQUEST_HEADERS, self._removals(names.DESTINATION), extra)]

    def _decide_on_headers(self, _: None) -> list[bytes]:
        self._core.counters.header_only_picks += 1
        return [self._headers_reply(self._decide(None), None)]

    def _hold_body(self, body: Body) -> list[bytes]:
        self.held.add(body.data)
        return []

    def _decide_on_held_body(self, body: Body) -> list[bytes]:
        if self.held.size_bytes or len(body.data) > self._core.settings.max_request_bytes:
            self.held.add(body.data)
            data = self.held.joined()
        else:
            data = bytes(body.data)
        return self._headers_and_whole_body(data, end=True)

    def _decide_on_trailers(self, _: None) -> list[bytes]:
        return [*self._headers_and_whole_body(self.held.joined(), end=False), replies.REQUEST_TRAILERS]

    def _decide_on_first_chunk(self, body: Body) -> list[bytes]:
        return [*self._decide_on_headers(None), *self._echo_request_body(body)]

    def _decide_on_buffered_body(self, body: Body) -> list[bytes]:
        limit = self._core.settings.max_request_bytes
        if len(body.data) > limit:
            raise PeerError(refusals.too_large(limit))
        data = bytes(body.data)
        # Without the end flag it is the first part of a body in one mode, and all of it before trailers in the other.
        decision = self._decide(data, whole=body.end or self.mode != BUFFERED_PARTIAL)
        renamed = None
        if decision.model is not None and decision.model != self._model:
            renamed = self._renamed(decision.model, data)
        mutation, extra = self._destination(decision)
        if renamed is not None and body.end:
            # Envoy compares the two in the buffered modes, and fails the request when they differ.
            mutation += replies.content_length(len(renamed))
        return [replies.buffered_body_reply(mutation, renamed, extra)]

    def _refuse_unpicked(self, _: None) -> list[bytes]:
        raise PeerError(refusals.BODY_MISSING)

    def _ack_request_body(self, _: Body) -> list[bytes]:
        return [replies.EMPTY[replies.REQUEST_BODY]]

    def _echo_request_body(self, body: Body) -> list[bytes]:
        return replies.echoes(replies.REQUEST_BODY, body, self._chunk_bytes)

    def _ack_request_trailers(self, _: None) -> list[bytes]:
        return [replies.REQUEST_TRAILERS]

    def _ignore_repeated_end(self, _: Body) -> list[bytes]:
        self._core.counters.repeated_ends += 1
        return []

    # Parts of the actions.

    @property
    def _chunk_bytes(self) -> int | None:
        """Longest chunk; None in GRPC mode, where a chunk is one message and stays one."""
        return None if self.mode == GRPC else self._core.settings.chunk_bytes

    def _headers_and_whole_body(self, body: bytes, *, end: bool) -> list[bytes]:
        decision = self._decide(body)
        if decision.model is not None and decision.model != self._model:
            body = self._renamed(decision.model, body) or body
        out = [self._headers_reply(decision, len(body) if end else None)]
        if body or end:
            self.in_chunks = len(body) > self._core.settings.chunk_bytes
            out += replies.streamed(replies.REQUEST_BODY, body, end=end, chunk_bytes=self._core.settings.chunk_bytes)
        if self.held.size_bytes:
            self.held.release()
        return out

    def _decide(self, body: bytes | None, *, whole: bool = True) -> Decision:
        core = self._core
        request = core.request(self._headers, self._line, body, self._subset, whole=whole)
        request.pool = self.pool
        if not request.request_id:
            request.request_id = self._own_id = names.new_request_id()
        self.decision = decision = core.decide(request, self.now_ns, self.received_ns)
        self._model = request.model
        return decision

    def _renamed(self, model: str, body: bytes) -> bytes | None:
        """The body under another model name; None where there is none to rename."""
        spliced = None
        if self._model is not None:
            spliced = splice_model(body, self._line.content_type, model)
        if spliced is None:
            self._core.counters.rewrites_skipped += 1
        else:
            self._core.counters.rewrites += 1
        return spliced

    def _headers_reply(self, decision: Decision, body_bytes: int | None) -> bytes:
        if (
            self._own_id is None
            and not decision.request_headers
            and not decision.metadata
            and not self._core.settings.conformance_headers
            and names.are_plain(self._headers)
        ):
            self._headers = {}
            return replies.plain_headers_reply(decision.endpoints, body_bytes or 0)
        mutation, extra = self._destination(decision)
        if body_bytes:
            mutation += replies.content_length(body_bytes)
        return replies.headers_reply(replies.REQUEST_HEADERS, mutation, extra, clear_route_cache=True)

    def _destination(self, decision: Decision) -> tuple[bytes, bytes]:
        """(header mutations, dynamic metadata) of a decision. The headers are let go: nothing reads them again."""
        value = ",".join(decision.endpoints)
        if decision.metadata:
            mutation, extra = replies.destination_with(value, decision.metadata)
        else:
            mutation, extra = replies.destination(value)
        if self._own_id is not None:
            mutation += replies.set_header(names.REQUEST_ID, self._own_id.encode())
        for name, text in decision.request_headers:
            mutation += replies.set_header(name, text)
        if self._core.settings.conformance_headers:
            mutation += replies.set_header(names.TEST_ECHO, f"{names.TEST_SERVED}:{decision.endpoints[0]}".encode())
        mutation += self._removals()
        self._headers = {}
        return mutation, extra

    def _removals(self, *more: str) -> bytes:
        """Mutations that take away what only the picker may say to a model server, where a client said it."""
        headers = self._headers
        if not more and names.are_plain(headers):
            return b""
        return b"".join(replies.remove_header(name) for name in (*sorted(names.RESERVED), *more) if name in headers)


#: The table with its actions looked up.
_ROWS = {key: (getattr(RequestSide, name), state) for key, (name, state) in REQUEST.items()}

"""The state machine of one stream, whole: every transition is in these two tables and nowhere else.

An ext-proc stream carries one HTTP exchange. Its two directions are independent machines, because a model server may
answer before the request's body is through. Each row says: in this state, on this event, do this, then be there.

What the body modes ask of a processor (Envoy 1.34 to 1.40; docs/protocol.md):

* no body shown         - one answer to the headers, with the destination.
* STREAMED              - headers are answered first and carry the destination; a body chunk is acknowledged, its header
                          mutations would be ignored.
* BUFFERED, ..._PARTIAL - headers are answered at once and empty, or Envoy would never send the body; the destination
                          goes with the answer to the body.
* FULL_DUPLEX_STREAMED  - nothing needs an answer until the body ended; then headers, body chunks, trailers, in this
                          order. Body answers are `streamed_response`, and whatever is not sent back is lost.
* GRPC                  - like FULL_DUPLEX_STREAMED, one message each way at a time, so never held.

Which of the `HEADERS_*` events a header message is comes from the mode in its `protocol_config`, from its end of stream
flag, and from what the path needs of a body (`RequestSide._plan`).
"""

from __future__ import annotations

import enum


class Event(enum.IntEnum):
    """What arrived, as the tables see it."""

    #: The request has no body to show: decide now.
    HEADERS_ONLY = 0
    #: STREAMED: decide now, chunks follow and are acknowledged.
    HEADERS_THEN_ACK = 1
    #: The body does not matter for the decision and the mode needs it echoed: decide now.
    HEADERS_THEN_ECHO = 2
    #: The body does not matter, but the subset hint may come with its first chunk: decide then.
    HEADERS_THEN_PEEK = 3
    #: FULL_DUPLEX_STREAMED and the body matters: hold it to its end.
    HEADERS_THEN_HOLD = 4
    #: BUFFERED or BUFFERED_PARTIAL.
    HEADERS_THEN_BUFFER = 5
    #: Response headers, by what follows them.
    HEADERS_LAST = 6
    BODY = 7
    BODY_END = 8
    TRAILERS = 9


class State(enum.IntEnum):
    """Where one direction of the stream is."""

    OPEN = 0
    ACKING = 1
    ECHOING = 2
    PEEKING = 3
    HOLDING = 4
    BUFFERING = 5
    DONE = 6


#: (state, event) -> (name of an `RequestSide` or `ResponseSide` method, next state)
REQUEST: dict[tuple[State, Event], tuple[str, State]] = {
    (State.OPEN, Event.HEADERS_ONLY): ("_decide_on_headers", State.DONE),
    (State.OPEN, Event.HEADERS_THEN_ACK): ("_decide_on_headers", State.ACKING),
    (State.OPEN, Event.HEADERS_THEN_ECHO): ("_decide_on_headers", State.ECHOING),
    (State.OPEN, Event.HEADERS_THEN_PEEK): ("_keep_headers", State.PEEKING),
    (State.OPEN, Event.HEADERS_THEN_HOLD): ("_keep_headers", State.HOLDING),
    (State.OPEN, Event.HEADERS_THEN_BUFFER): ("_ask_for_body", State.BUFFERING),
    # STREAMED: the decision is made, chunks pass.
    (State.ACKING, Event.BODY): ("_ack_request_body", State.ACKING),
    (State.ACKING, Event.BODY_END): ("_ack_request_body", State.DONE),
    (State.ACKING, Event.TRAILERS): ("_ack_request_trailers", State.DONE),
    # FULL_DUPLEX_STREAMED and GRPC, decided: chunks go back as they come.
    (State.ECHOING, Event.BODY): ("_echo_request_body", State.ECHOING),
    (State.ECHOING, Event.BODY_END): ("_echo_request_body", State.DONE),
    (State.ECHOING, Event.TRAILERS): ("_ack_request_trailers", State.DONE),
    # FULL_DUPLEX_STREAMED, not decided: the first chunk decides.
    (State.PEEKING, Event.BODY): ("_decide_on_first_chunk", State.ECHOING),
    (State.PEEKING, Event.BODY_END): ("_decide_on_first_chunk", State.DONE),
    (State.PEEKING, Event.TRAILERS): ("_decide_on_trailers", State.DONE),
    # FULL_DUPLEX_STREAMED, body held: its end, in a chunk or in trailers, decides.
    (State.HOLDING, Event.BODY): ("_hold_body", State.HOLDING),
    (State.HOLDING, Event.BODY_END): ("_decide_on_held_body", State.DONE),
    (State.HOLDING, Event.TRAILERS): ("_decide_on_trailers", State.DONE),
    # BUFFERED: one body message; without the end flag it is a part (PARTIAL), or trailers follow.
    (State.BUFFERING, Event.BODY): ("_decide_on_buffered_body", State.DONE),
    (State.BUFFERING, Event.BODY_END): ("_decide_on_buffered_body", State.DONE),
    (State.BUFFERING, Event.TRAILERS): ("_refuse_unpicked", State.DONE),
    # Envoy 1.35 to 1.37 may send the end of a body twice (envoyproxy/envoy#46237): the second is no second request.
    (State.DONE, Event.BODY): ("_ignore_repeated_end", State.DONE),
    (State.DONE, Event.BODY_END): ("_ignore_repeated_end", State.DONE),
    (State.DONE, Event.TRAILERS): ("_ack_request_trailers", State.DONE),
}

RESPONSE: dict[tuple[State, Event], tuple[str, State]] = {
    (State.OPEN, Event.HEADERS_LAST): ("_answer_response_headers", State.DONE),
    (State.OPEN, Event.HEADERS_THEN_ACK): ("_answer_response_headers", State.ACKING),
    (State.OPEN, Event.HEADERS_THEN_ECHO): ("_answer_response_headers", State.ECHOING),
    (State.ACKING, Event.BODY): ("_ack_response_body", State.ACKING),
    (State.ACKING, Event.BODY_END): ("_ack_response_body", State.DONE),
    (State.ACKING, Event.TRAILERS): ("_ack_response_trailers", State.DONE),
    (State.ECHOING, Event.BODY): ("_echo_response_body", State.ECHOING),
    (State.ECHOING, Event.BODY_END): ("_echo_response_body", State.DONE),
    (State.ECHOING, Event.TRAILERS): ("_ack_response_trailers", State.DONE),
    # Response header mode SKIP: the body is the first that is seen.
    (State.OPEN, Event.BODY): ("_echo_or_ack_response_body", State.OPEN),
    (State.OPEN, Event.BODY_END): ("_echo_or_ack_response_body", State.DONE),
    (State.OPEN, Event.TRAILERS): ("_ack_response_trailers", State.DONE),
    (State.DONE, Event.BODY): ("_ignore_repeated_end", State.DONE),
    (State.DONE, Event.BODY_END): ("_ignore_repeated_end", State.DONE),
    (State.DONE, Event.TRAILERS): ("_ack_response_trailers", State.DONE),
}

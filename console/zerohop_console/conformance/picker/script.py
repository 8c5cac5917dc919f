"""The language in which cases are written: messages to send, waits, and checks over what came back. Data only.

Texts in cases name members of the pool by position: `{0}` is the first address, `{0.host}` its IP.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from zerohop_console.conformance.picker.exchange import Seen
from zerohop_process.address import Address


class Level(enum.StrEnum):
    """How binding a case is."""

    #: The endpoint picker protocol 1.0, or Envoy's ext-proc contract, demands it.
    MUST = "must"
    #: They recommend it, or the field's pickers agree on it.
    SHOULD = "should"
    #: Zerohop's own stricter rule: neither demands it, users are better off with it.
    OURS = "ours"


class Mode(enum.IntEnum):
    """Body send modes of ext-proc."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


Pool = tuple[Address, ...]
CHAT_PATH = "/v1/chat/completions"
#: Numbers, escapes and a duplicate key that any parser and writer would change.
CHAT = (
    b'{"model": "conformance", "messages":[{"role":"user","content":"caf\\u00e9 \xc3\xa9"}],'
    b'"seed":9007199254740993, "temperature":1.0e0, "x":-0.0, "x":1E2}'
)


@dataclass(frozen=True)
class RequestHeaders:
    """The first message of an exchange."""

    path: str = CHAT_PATH
    method: str = "POST"
    end: bool = False
    mode: Mode | None = Mode.FULL_DUPLEX_STREAMED
    response_mode: Mode = Mode.NONE
    headers: Mapping[str, str] = field(default_factory=dict)
    subset: tuple[str, ...] | str | None = None
    content_type: str = "application/json"
    #: Which field carries header values: Envoy uses raw_value, others value.
    raw_values: bool = True
    upper_case: bool = False
    observability: bool = False
    request_id: str | None = "4f0c1de2-93b5-4f49-8a4b-1f2f6a6a0001"


@dataclass(frozen=True)
class RequestBody:
    """One chunk of the request's body."""

    data: bytes = CHAT
    end: bool = True
    subset: tuple[str, ...] | str | None = None


@dataclass(frozen=True)
class RequestTrailers:
    """The request's trailers, which end its body."""


@dataclass(frozen=True)
class ResponseHeaders:
    """The model server's answer begins."""

    status: int = 200
    end: bool = False
    served: str | None = None


@dataclass(frozen=True)
class ResponseBody:
    """One chunk of the response's body."""

    data: bytes
    end: bool = False


@dataclass(frozen=True)
class ResponseTrailers:
    """The response's trailers."""


class Until(enum.StrEnum):
    """What a wait ends at. A refusal or the end of the stream ends every wait."""

    REQUEST_HEADERS = "the answer to the request headers"
    REQUEST_BODY = "the answer to the request body"
    REQUEST_BODY_END = "the end of the request body"
    REQUEST_TRAILERS = "the answer to the request trailers"
    RESPONSE_HEADERS = "the answer to the response headers"
    RESPONSE_BODY = "the answer to the response chunk"
    RESPONSE_TRAILERS = "the answer to the response trailers"


@dataclass(frozen=True)
class Wait:
    """Reads replies until one more of `until` has come. A case whose wait runs out fails."""

    until: Until


@dataclass(frozen=True)
class Quiet:
    """Reads for `seconds`; a reply in that time is one too many."""

    seconds: float = 0.15


@dataclass(frozen=True)
class Cancel:
    """The gateway resets the stream."""


Step = (
    RequestHeaders
    | RequestBody
    | RequestTrailers
    | ResponseHeaders
    | ResponseBody
    | ResponseTrailers
    | Wait
    | Quiet
    | Cancel
)
#: Looks at one exchange; a sentence when something is wrong, None when all is well.
Check = Callable[[Seen, Pool], str | None]


@dataclass(frozen=True)
class Case:
    """One rule: what is sent, and what must be true of what comes back."""

    name: str
    level: Level
    #: The rule in one sentence.
    demands: str
    #: Where it is written, or which public report it comes from.
    source: str
    steps: tuple[Step, ...]
    checks: tuple[Check, ...]
    #: Fewest members a pool needs for the case to mean something.
    pool: int = 1
    #: Needs a picker that honours `test-epp-endpoint-selection`.
    steering: bool = False
    #: Exchanges of this case at one time, each on its own stream.
    parallel: int = 1

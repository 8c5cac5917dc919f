"""What can be chosen about the protocol, and what is counted of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: Some Envoys cap what they take in one `streamed_response` at 64 KiB; the field's pickers use this margin.
CHUNK_BYTES = 62_000


@dataclass(frozen=True, slots=True)
class ProtocolSettings:
    """Choices that hold for every stream of a picker."""

    #: `skip` leaves each stream as soon as its request is through; `observe` stays to see the response.
    response: Literal["skip", "observe"] = "skip"
    #: Longest request body that is held; a longer one is answered with 413.
    max_request_bytes: int = 16 << 20
    #: Bodies held at one time by all streams of a worker; past it a request is answered with 503.
    max_held_bytes: int = 512 << 20
    #: Time from a request's last needed message to the decision, after which the fallback policy decides.
    deadline_ns: int = 50_000_000
    #: Honour `test-epp-endpoint-selection` and set the response headers of the conformance suite.
    conformance_headers: bool = False
    #: The gateway allows `mode_override`: where it shows no body, ask for one when the path needs it.
    ask_for_body: bool = False
    #: Most bytes of body in one `streamed_response`.
    chunk_bytes: int = CHUNK_BYTES
    #: The front writes a last reply and the end of its stream in one piece. Where it does not, a response can begin
    #: between the two, and what a gateway then hands over would be lost: the stream stays for responses it echoes.
    ends_in_one_write: bool = True


@dataclass(slots=True)
class ProtocolCounters:
    """What happened, for the metrics. Plain numbers that only grow, except `held_bytes`."""

    streams: int = 0
    picks: int = 0
    #: Picks made from headers alone.
    header_only_picks: int = 0
    #: Picks by the fallback policy because the deadline had passed.
    deadline_fallbacks: int = 0
    #: A scheduler raised; the fallback policy decided instead. `last_failure` says what.
    scheduler_failures: int = 0
    last_failure: BaseException | None = None
    #: Second ends of a body, ignored.
    repeated_ends: int = 0
    rewrites: int = 0
    #: A rewrite was asked for, and the body (or its model) was not there to be rewritten.
    rewrites_skipped: int = 0
    #: (status, dropped reason) -> immediate responses.
    refusals: dict[tuple[int, str], int] = field(default_factory=dict)
    #: request body mode -> streams.
    modes: dict[int, int] = field(default_factory=dict)
    #: (endpoint asked for first, endpoint that served) -> responses, as the gateway reports them; at most 4,096 pairs.
    served: dict[tuple[str, str], int] = field(default_factory=dict)
    #: Bytes of body held now.
    held_bytes: int = 0

    def count_served(self, asked: str, served: str) -> None:
        """Counts one report of the gateway."""
        key = (asked, served)
        if key in self.served or len(self.served) < 4096:
            self.served[key] = self.served.get(key, 0) + 1

"""What one exchange with a picker looks like, whatever carries it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from zerohop_picker._pb import extproc_pb2 as pb


@dataclass(frozen=True)
class Ended:
    """The picker ended the stream."""

    #: gRPC status code, 0 for OK.
    status: int
    detail: str = ""


class Exchange(Protocol):
    """One stream."""

    async def send(self, message: bytes) -> None:
        """Sends one ProcessingRequest; nothing happens once the picker has ended the stream."""

    async def receive(self, timeout_s: float) -> bytes | Ended:
        """The next ProcessingResponse, or how the stream ended.

        Raises:
            TimeoutError: neither came in time.
        """

    async def cancel(self) -> None:
        """Resets the stream; also after its end."""


class Target(Protocol):
    """A picker under test."""

    def open(self) -> Exchange:
        """A new stream."""


@dataclass
class Seen:
    """Everything that came back in one exchange."""

    replies: list[pb.ProcessingResponse] = field(default_factory=list)
    ended: Ended | None = None
    #: What was waited for in vain.
    missing: str | None = None
    #: A reply came where none was due.
    unexpected: str | None = None
    #: Request body bytes that were sent.
    request: bytes = b""
    #: Response chunks that were sent while the picker was still there.
    response: list[bytes] = field(default_factory=list)
    #: A message of the response was sent.
    response_begun: bool = False
    #: The picker left after the request, as it may; the response was not sent.
    left: bool = False
    #: The picker left while the response was under way.
    deserted: bool = False

    def of(self, kind: str) -> list[pb.ProcessingResponse]:
        """Replies of one kind, such as `request_body`."""
        return [reply for reply in self.replies if reply.WhichOneof("response") == kind]

    @property
    def refusal(self) -> pb.ImmediateResponse | None:
        """The immediate response, if there was one."""
        found = self.of("immediate_response")
        return found[0].immediate_response if found else None

    @property
    def over(self) -> bool:
        """Whether nothing more can come."""
        return self.ended is not None or self.refusal is not None

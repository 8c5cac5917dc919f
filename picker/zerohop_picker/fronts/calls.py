"""What a front serves: calls without I/O, by gRPC path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

EXT_PROC_PATH = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"

# gRPC status codes: https://grpc.github.io/grpc/core/md_doc_statuscodes.html
OK = 0
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14

#: Status, reason and message of what is refused because draining took too long.
LEAVING = (503, "rejected-shutting-down", "the endpoint picker is shutting down; try again")


class Call(Protocol):
    """One gRPC call: whole serialized messages in, whole serialized messages out.

    A front feeds it in order, sends what comes back in order, ends the call with status OK when `finished` turns true,
    and calls `close` exactly when the call is over for whatever reason. Nothing here blocks.
    """

    @property
    def finished(self) -> bool:
        """Whether nothing more will be sent: the front ends the call."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies that wait in this call."""
        ...

    @property
    def awaiting_request(self) -> bool:
        """Whether the peer owes us the rest of a request, so that standing still is a fault of its own."""
        ...

    @property
    def wake_ns(self) -> int:
        """When not 0: the moment (CLOCK_MONOTONIC) at which to call `wake`, unless a message comes before."""
        ...

    def receive(self, message: bytes, now_ns: int) -> Sequence[bytes]:
        """Take one message and return the replies to send.

        Raises:
            StreamFault: the call ends with that gRPC status.
        """
        ...

    def wake(self, now_ns: int) -> Sequence[bytes]:
        """Return what is to be sent now that `wake_ns` has come."""
        ...

    def half_close(self, now_ns: int) -> Sequence[bytes]:
        """Take the news that the peer sends nothing more, and return the last replies."""
        ...

    def refuse(self, status: int, reason: str, message: str) -> Sequence[bytes]:
        """Give up on the request with an HTTP status, and return the replies that say so."""
        ...

    def close(self) -> None:
        """Release everything. Idempotent."""
        ...


class NoCall:
    """Stands where a call has not been made yet."""

    finished = True
    held_bytes = 0
    awaiting_request = True
    wake_ns = 0

    def receive(self, message: bytes, now_ns: int) -> Sequence[bytes]:  # noqa: ARG002
        """Take nothing."""
        return ()

    def wake(self, now_ns: int) -> Sequence[bytes]:  # noqa: ARG002
        """Say nothing."""
        return ()

    def half_close(self, now_ns: int) -> Sequence[bytes]:  # noqa: ARG002
        """Take nothing."""
        return ()

    def refuse(self, status: int, reason: str, message: str) -> Sequence[bytes]:  # noqa: ARG002
        """Say nothing."""
        return ()

    def close(self) -> None:
        """Hold nothing."""


NO_CALL: Call = NoCall()

Metadata = Mapping[bytes, bytes]
Push = Callable[[Sequence[bytes]], None]
# Makes a call from the initial metadata and a function that sends messages outside `receive`.
CallFactory = Callable[[Metadata, Push], Call]
Services = Mapping[bytes, CallFactory]

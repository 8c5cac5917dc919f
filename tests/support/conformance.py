"""The conformance suite's cases on a protocol core, without any transport."""

from __future__ import annotations

from zerohop_console.conformance.picker.exchange import Ended
from zerohop_picker.protocol import ExtProcStream, ProtocolCore, StreamFault

NOW_NS = 5_000_000_000


class CoreTarget:
    """A target whose streams are those of a core."""

    def __init__(self, core: ProtocolCore):
        self.core = core

    def open(self) -> CoreExchange:
        return CoreExchange(ExtProcStream(self.core))


class CoreExchange:
    """One stream of a core, as the suite sees any other."""

    def __init__(self, stream: ExtProcStream):
        self.stream = stream
        self._replies: list[bytes] = []
        self._ended: Ended | None = None

    async def send(self, message: bytes) -> None:
        if self._ended is not None:
            return
        try:
            self._replies += self.stream.receive(message, NOW_NS)
        except StreamFault as fault:
            self._end(fault.grpc_status, fault.message)
            return
        if self.stream.finished:
            self._end(0)

    def _end(self, status: int, detail: str = "") -> None:
        self._ended = Ended(status, detail)
        self.stream.close()

    async def receive(self, timeout_s: float) -> bytes | Ended:
        if self._replies:
            return self._replies.pop(0)
        if self._ended is None:
            raise TimeoutError
        return self._ended

    async def cancel(self) -> None:
        self.stream.close()

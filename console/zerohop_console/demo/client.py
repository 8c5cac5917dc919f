"""An HTTP/1.1 client for load: it sends bytes, and notes when the answer began and ended."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast


@dataclass(slots=True)
class Outcome:
    """How one request went. Times are seconds after it was sent; `error` is None when a whole answer came."""

    status: int = 0
    headers: Mapping[str, str] | None = None
    body: bytes = b""
    first_byte_s: float = 0.0
    total_s: float = 0.0
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether a whole answer with status 2xx came."""
        return self.error is None and 200 <= self.status < 300

    def whole_body(self) -> bytes:
        """Return the body without its chunk framing."""
        if (self.headers or {}).get("transfer-encoding") != "chunked":
            return self.body
        parts: list[bytes] = []
        rest = self.body
        while True:
            size_text, _, rest = rest.partition(b"\r\n")
            size = int(size_text or b"0", 16)
            if not size:
                return b"".join(parts)
            parts.append(rest[:size])
            rest = rest[size + 2 :]

    def complaint(self) -> str:
        """Return what went wrong, in a few words."""
        return self.error or f"status {self.status} {self.body[:120].decode(errors='replace')}"


class _Exchange(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self, *, keep_body: bool) -> None:
        self._keep_body = keep_body
        self.transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Outcome] | None = None
        self.reusable = True
        self._reset()

    def _reset(self) -> None:
        self._outcome = Outcome()
        self._head = bytearray()
        self._in_head = True
        self._left = 0
        self._chunked = False
        self._tail = b""
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.reusable = False
        if self._answer is not None:
            began = "after the answer had begun" if self._outcome.status else "before an answer"
            self._outcome.error = f"connection lost {began}{f' ({exc})' if exc else ''}"
            self._complete()

    def send(self, request: bytes) -> asyncio.Future[Outcome]:
        self._reset()
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._sent_s = time.perf_counter()
        if self.transport is None:
            self._outcome.error = "connection lost before the request"
            self._complete()
        else:
            self.transport.write(request)
        return answer

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.reusable = False
            return
        if self._in_head:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            self._read_head(bytes(self._head[:end]))
            data = bytes(self._head[end + 4 :])
        if self._keep_body:
            self._body += data
        if self._chunked:
            # Our servers' JSON and SSE never hold this sequence inside a chunk.
            self._tail = (self._tail + data)[-5:]
            if self._tail == b"0\r\n\r\n":
                self._complete()
            return
        self._left -= len(data)
        if self._left <= 0:
            self._complete()

    def _read_head(self, head: bytes) -> None:
        self._in_head = False
        lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        self._outcome.status = int(lines[0].split(" ", 2)[1])
        self._outcome.headers = headers
        self._outcome.first_byte_s = time.perf_counter() - self._sent_s
        self._chunked = headers.get("transfer-encoding") == "chunked"
        self._left = int(headers.get("content-length", 0))
        if headers.get("connection") == "close":
            self.reusable = False

    def _complete(self) -> None:
        answer, self._answer = self._answer, None
        self._outcome.total_s = time.perf_counter() - self._sent_s
        self._outcome.body = bytes(self._body)
        if answer is not None and not answer.done():
            answer.set_result(self._outcome)


class Client:
    """Requests to one address over as many kept-alive connections as are needed at a time."""

    def __init__(self, host: str, port: int, *, keep_body: bool = False) -> None:
        self._host, self._port = host, port
        self._keep_body = keep_body
        self._idle: list[_Exchange] = []
        self._open: set[_Exchange] = set()

    async def send(self, request: bytes) -> Outcome:
        """Send one request and return how it went; never raises for what the other side does.

        A cancelled call closes its connection, as a client that leaves does.
        """
        exchange = self._take_idle()
        if exchange is None:
            try:
                _, exchange = await asyncio.get_running_loop().create_connection(
                    lambda: _Exchange(keep_body=self._keep_body), self._host, self._port
                )
            except OSError as error:
                return Outcome(error=f"cannot connect: {error.strerror or error}")
            self._open.add(exchange)
        try:
            outcome = await exchange.send(request)
        except asyncio.CancelledError:
            self._drop(exchange)
            raise
        if exchange.reusable:
            self._idle.append(exchange)
        else:
            self._drop(exchange)
        return outcome

    def _take_idle(self) -> _Exchange | None:
        while self._idle:
            exchange = self._idle.pop()
            if exchange.reusable:
                return exchange
            self._open.discard(exchange)
        return None

    def _drop(self, exchange: _Exchange) -> None:
        self._open.discard(exchange)
        if exchange.transport is not None:
            exchange.transport.abort()

    def close(self) -> None:
        """Close all connections."""
        for exchange in list(self._open):
            self._drop(exchange)
        self._idle.clear()


def post(path: str, body: Mapping[str, Any] | bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of a POST with a JSON body."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = f"POST {path} HTTP/1.1\r\nhost: demo\r\ncontent-type: application/json\r\n{extra}"
    return f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw


def get(path: str) -> bytes:
    """Return the bytes of a GET."""
    return f"GET {path} HTTP/1.1\r\nhost: demo\r\n\r\n".encode()

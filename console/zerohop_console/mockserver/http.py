"""A small HTTP/1.1 server on asyncio: kept-alive connections, bodies by length or chunks, streamed answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

_HEAD_LIMIT_BYTES = 64 * 1024
_BODY_LIMIT_BYTES = 64 * 1024 * 1024
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(slots=True)
class HttpRequest:
    """One request: `path` without its query, header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    #: called once when the client leaves before the answer is complete
    on_disconnect: Callable[[], None] | None = field(default=None)


class HttpError(Exception):
    """The request cannot be understood; the connection ends after `status`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Connection(asyncio.Protocol):
    """One client connection. `handle(request, connection)` must answer each request exactly once."""

    def __init__(self, handle: Callable[[HttpRequest, Connection], None], open_connections: set[Connection]) -> None:
        self._handle = handle
        self._open = open_connections
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._request: HttpRequest | None = None
        self._keep_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Tell whoever is answering that nobody listens."""
        self._transport = None
        self._open.discard(self)
        request, self._request = self._request, None
        if request is not None and request.on_disconnect is not None:
            request.on_disconnect()

    def data_received(self, data: bytes) -> None:
        """Collect bytes; a complete request is handled at once, the next one after its answer."""
        self._buffer += data
        self._advance()

    def _advance(self) -> None:
        while self._request is None and self._transport is not None and self._buffer:
            try:
                parsed = parse_request(self._buffer)
            except HttpError as error:
                self._keep_alive = False
                self._request = HttpRequest("", "", {})
                self.respond_json(error.status, {"error": {"message": str(error), "code": error.status}})
                return
            if parsed is None:
                return
            request, size = parsed
            del self._buffer[:size]
            self._request = request
            self._keep_alive = request.headers.get("connection", "").lower() != "close"
            self._handle(request, self)

    @property
    def is_open(self) -> bool:
        """Whether the client is still there."""
        return self._transport is not None

    def respond(self, status: int, content_type: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Answer whole."""
        head = self._head(status, content_type, headers, f"content-length: {len(body)}\r\n")
        self._finish(head + body)

    def respond_json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        """Answer with JSON."""
        self.respond(status, "application/json", json.dumps(value).encode(), headers)

    def start_stream(self, content_type: str, headers: dict[str, str] | None = None) -> None:
        """Begin an answer whose parts follow."""
        if self._transport is not None:
            self._transport.write(self._head(200, content_type, headers, "transfer-encoding: chunked\r\n"))

    def send_part(self, part: bytes) -> None:
        """Send one part of a started answer."""
        if self._transport is not None and part:
            self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))

    def end_stream(self, last: bytes = b"") -> None:
        """Send the last part and complete a started answer."""
        chunk = b"%x\r\n%b\r\n" % (len(last), last) if last else b""
        self._finish(chunk + b"0\r\n\r\n")

    def abort(self) -> None:
        """Reset the connection, as a crash would."""
        if self._transport is not None:
            self._transport.abort()

    def send_raw(self, data: bytes, *, close: bool) -> None:
        """Send bytes that need not be HTTP."""
        if self._transport is not None:
            self._transport.write(data)
            if close:
                self._transport.close()

    def close_when_idle(self) -> None:
        """Close now if no answer is owed, else after it."""
        self._keep_alive = False
        if self._request is None and self._transport is not None:
            self._transport.close()

    def _head(self, status: int, content_type: str, headers: dict[str, str] | None, framing: str) -> bytes:
        extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        ending = "" if self._keep_alive else "connection: close\r\n"
        phrase = _PHRASES.get(status, "Unknown")
        return f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {content_type}\r\n{extra}{ending}{framing}\r\n".encode()

    def _finish(self, data: bytes) -> None:
        self._request = None
        if self._transport is None:
            return
        self._transport.write(data)
        if self._keep_alive:
            # Not at once: a handler that answers before it returns would otherwise recurse through a pipelined buffer.
            if self._buffer:
                asyncio.get_running_loop().call_soon(self._advance)
        else:
            self._transport.close()


def parse_request(buffer: bytearray) -> tuple[HttpRequest, int] | None:
    """Return the first request in `buffer` and its size in bytes, None while it is incomplete.

    Raises: HttpError.
    """
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        if len(buffer) > _HEAD_LIMIT_BYTES:
            raise HttpError(431, "the request head is too large")
        return None
    lines = buffer[:end].decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise HttpError(400, "not an HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise HttpError(400, "a header line has no colon")
        headers[name.strip().lower()] = value.strip()
    request = HttpRequest(words[0], words[1].partition("?")[0], headers)
    start = end + 4
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _chunked(buffer, start, request)
    length = headers.get("content-length", "0")
    if not length.isdigit():
        raise HttpError(400, "content-length is no number")
    size = int(length)
    if size > _BODY_LIMIT_BYTES:
        raise HttpError(413, "the body is too large")
    if len(buffer) - start < size:
        return None
    request.body = bytes(buffer[start : start + size])
    return request, start + size


def _chunked(buffer: bytearray, start: int, request: HttpRequest) -> tuple[HttpRequest, int] | None:
    # Bounds first, bytes once all are there: each arrival looks at the chunks again, but copies nothing.
    chunks: list[tuple[int, int]] = []
    while True:
        end = buffer.find(b"\r\n", start)
        if end < 0:
            return None
        try:
            size = int(bytes(buffer[start:end]).partition(b";")[0], 16)
        except ValueError:
            raise HttpError(400, "a chunk has no size") from None
        if size > _BODY_LIMIT_BYTES:
            raise HttpError(413, "the body is too large")
        start = end + 2
        if size == 0:
            # trailers, if any, end with an empty line
            while True:
                end = buffer.find(b"\r\n", start)
                if end < 0:
                    return None
                empty, start = end == start, end + 2
                if empty:
                    request.body = b"".join(bytes(buffer[first:last]) for first, last in chunks)
                    return request, start
        if len(buffer) < start + size + 2:
            return None
        chunks.append((start, start + size))
        start += size + 2

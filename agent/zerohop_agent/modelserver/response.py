"""An HTTP/1.1 response, assembled from pieces of any size. No socket and no clock.

Only what a GET needs: a status line, headers, and a body that ends by its length, by chunks, or with the connection.
Sizes are
bounded before anything is stored.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from zerohop_agent.signals import SourceError
from zerohop_snapshot.layout import UnhealthyReason

__all__ = ["HEADER_LIMIT_BYTES", "Response", "ResponseParser"]

#: the size at which nginx, Apache and h11 begin to refuse a header block, several times over
HEADER_LIMIT_BYTES = 64 * 1024
_CHUNK_LINE_LIMIT_BYTES = 4096

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: |$)")
_LENGTH = re.compile(r"[0-9]{1,15}\Z")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;|\Z)")


@dataclass(frozen=True, slots=True)
class Response:
    """`headers` have lower-case names; repeated ones are joined with commas. `body` is decoded of chunks and gzip."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    #: the connection may carry another request
    keep_alive: bool


@dataclass(frozen=True, slots=True)
class _Head:
    status: int
    headers: Mapping[str, str]
    keep_alive: bool
    #: bytes of the body; None: not said
    length: int | None
    chunked: bool


@lru_cache(maxsize=256)
def _parse_head(block: bytes) -> _Head:
    """Return what a status line and headers say. Answers of one server differ in their date once a second, if at
    all."""
    lines = block.split(b"\n")
    match = _STATUS.match(lines[0].rstrip(b"\r"))
    if match is None:
        raise SourceError(UnhealthyReason.NOT_METRICS, "the answer is no HTTP")
    status = int(match[2])
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise SourceError(UnhealthyReason.NOT_METRICS, "the answer has a malformed header")
        name, value = name.strip().lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    connection = headers.get("connection", "").lower()
    keep_alive = "close" not in connection and (match[1] == b"1" or "keep-alive" in connection)
    chunked = headers.get("transfer-encoding", "").lower().endswith("chunked")
    length = None
    if status in (204, 304):
        length, chunked = 0, False
    elif not chunked and "content-length" in headers:
        length = _parse_length(headers["content-length"])
    return _Head(status, headers, keep_alive, length, chunked)


def _parse_length(text: str) -> int:
    parts = {part.strip() for part in text.split(",")}
    first = min(parts)
    if len(parts) > 1 or _LENGTH.match(first) is None:
        raise SourceError(UnhealthyReason.NOT_METRICS, f"the answer has the content-length {text[:40]!r}")
    return int(first)


class ResponseParser:
    """Takes the bytes of one response. `feed` and `end` return it once it is whole.

    Raises: SourceError - NOT_METRICS for what is no HTTP or an encoding that was not asked for, TOO_LARGE past a bound,
    RESET for a connection that ends too early.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._head_bytes = b""
        self._in_head = True
        self._head = _Head(0, {}, False, None, False)
        self._pieces: list[bytes] = []
        self._size = 0
        #: bytes of the body still to come; None: chunked or until the end of the connection
        self._left: int | None = None
        self._chunks: _Chunks | None = None
        self._keep_alive = True
        #: a byte has come
        self.started = False
        #: bytes came after the end of the response
        self.excess = False

    def feed(self, data: bytes) -> Response | None:
        """Take the next bytes."""
        self.started = True
        if self._in_head:
            rest = self._take_head(data)
            if rest is None:
                return None
            data = rest
            if self._left == 0:
                self.excess = bool(data)
                return self._finish()
        if not data:
            return None
        if self._chunks is not None:
            return self._take_chunks(data)
        if self._left is not None:
            if len(data) > self._left:
                self.excess = True
                data = data[: self._left]
            self._left -= len(data)
        self._store(data)
        return self._finish() if self._left == 0 else None

    def end(self) -> Response:
        """Take the end of the connection."""
        if self._in_head:
            cut = "in the headers" if self.started else "before an answer"
            raise SourceError(UnhealthyReason.RESET, f"the connection ended {cut}")
        if self._left is not None or self._chunks is not None:
            raise SourceError(UnhealthyReason.RESET, "the connection ended inside the body")
        self._keep_alive = False
        return self._finish()

    def _take_head(self, data: bytes) -> bytes | None:
        """Return what follows the headers, or None while they are not whole."""
        block = self._head_bytes + data
        while True:
            end, skip = block.find(b"\r\n\r\n"), 4
            if end < 0:
                end, skip = block.find(b"\n\n"), 2
            if end < 0:
                if len(block) > HEADER_LIMIT_BYTES:
                    raise SourceError(UnhealthyReason.TOO_LARGE, f"headers of more than {HEADER_LIMIT_BYTES} bytes")
                if not b"HTTP/1.".startswith(block[:7]):
                    raise SourceError(UnhealthyReason.NOT_METRICS, "the answer is no HTTP")
                self._head_bytes = block
                return None
            head = _parse_head(block[:end])
            block = block[end + skip :]
            if head.status >= 200:  # 1xx announce the real answer
                break
        self._head, self._head_bytes, self._in_head = head, b"", False
        self._left = head.length
        self._chunks = _Chunks() if head.chunked else None
        if head.length is not None and head.length > self._limit:
            raise self._too_large()
        return block

    def _take_chunks(self, data: bytes) -> Response | None:
        assert self._chunks is not None  # noqa: S101 - only called so
        for piece in self._chunks.feed(data):
            self._store(piece)
        if not self._chunks.done:
            return None
        self.excess = self._chunks.excess
        return self._finish()

    def _store(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            raise self._too_large()
        self._pieces.append(piece)

    def _finish(self) -> Response:
        head = self._head
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        encoding = head.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity") and body:
            body = self._decode(body, encoding)
        return Response(head.status, head.headers, body, self._keep_alive and head.keep_alive and not self.excess)

    def _decode(self, body: bytes, encoding: str) -> bytes:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise SourceError(UnhealthyReason.NOT_METRICS, f"the answer is encoded as {encoding[:20]!r}, unasked")
        decoder = zlib.decompressobj(wbits=47)  # gzip or zlib, told by the first bytes
        try:
            plain = decoder.decompress(body, self._limit + 1)
        except zlib.error as error:
            raise SourceError(UnhealthyReason.NOT_METRICS, f"the answer is broken {encoding}: {error}") from None
        if len(plain) > self._limit:
            raise self._too_large()
        if not decoder.eof:
            raise SourceError(UnhealthyReason.NOT_METRICS, f"the answer is {encoding} that ends too early")
        return plain

    def _too_large(self) -> SourceError:
        return SourceError(UnhealthyReason.TOO_LARGE, f"the answer is larger than {self._limit} bytes")


class _Chunks:
    """Takes a chunked body apart. Trailers are read over."""

    def __init__(self) -> None:
        self._line = b""
        self._left = 0
        self._state = "size"
        self.done = False
        self.excess = False

    def feed(self, data: bytes) -> list[bytes]:
        pieces: list[bytes] = []
        while data and not self.done:
            if self._state == "data":
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                pieces.append(piece)
                if self._left == 0:
                    self._state = "end of chunk"
                continue
            end = data.find(b"\n")
            part = data if end < 0 else data[:end]
            if len(self._line) + len(part) > _CHUNK_LINE_LIMIT_BYTES:
                raise SourceError(UnhealthyReason.NOT_METRICS, "the answer has a malformed chunk")
            self._line += part
            if end < 0:
                break
            line, self._line, data = self._line.rstrip(b"\r"), b"", data[end + 1 :]
            self._take_line(line)
        self.excess = self.done and bool(data)
        return pieces

    def _take_line(self, line: bytes) -> None:
        if self._state == "size":
            match = _CHUNK_SIZE.match(line)
            if match is None:
                raise SourceError(UnhealthyReason.NOT_METRICS, "the answer has a malformed chunk")
            self._left = int(match[1], 16)
            self._state = "data" if self._left else "trailers"
        elif self._state == "end of chunk":
            if line:
                raise SourceError(UnhealthyReason.NOT_METRICS, "the answer has a malformed chunk")
            self._state = "size"
        elif not line:
            self.done = True

"""A small HTTP server for `GET /metrics` and whatever else of plain text a process shows about itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from zerohop_picker.fronts.sockets import bind_tcp
from zerohop_process import log
from zerohop_process.address import Address, Listen

_logger = log.get("picker.metrics")
TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"
REQUEST_TIMEOUT_S = 10.0
REQUEST_LIMIT_BYTES = 16 * 1024

# Makes a page: content type and body.
Page = Callable[[], Awaitable[tuple[str, bytes]]]


class MetricsServer:
    """Serves pages by path, one request per connection."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None

    async def listen(self, address: Address) -> Address:
        """Serve at `address`; return it with the port that port 0 became. Raises: ConfigError."""
        sock = bind_tcp(Listen(address=address), reuse_port=False, flag="--metrics-address")
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=REQUEST_LIMIT_BYTES)
        return Address(address.host, sock.getsockname()[1])

    async def close(self) -> None:
        """Take no more requests."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked has left, or does not speak HTTP
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        page = self._pages.get(path)
        if method not in (b"GET", b"HEAD"):
            return _response(405, "Method Not Allowed", TEXT, b"GET only\n")
        if page is None:
            return _response(404, "Not Found", TEXT, ("here: " + " ".join(self._pages) + "\n").encode())
        try:
            kind, body = await page()
        except Exception:
            _logger.exception("cannot make the page")
            return _response(500, "Internal Server Error", TEXT, b"the page could not be made\n")
        return _response(200, "OK", kind, body, head_only=method == b"HEAD")


def _response(status: int, phrase: str, kind: str, body: bytes, *, head_only: bool = False) -> bytes:
    head = (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if head_only else body)

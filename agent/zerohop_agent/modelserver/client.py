"""GET over one kept-alive connection, for pages that are read twenty times a second.

A general HTTP client costs 0.5 to 1 ms per request, several times what a page is worth. This one writes a
prepared request, collects the answer in a protocol and wakes its task once. Bounds hold for the whole exchange:
bytes, header
size, total time (not per read), one redirect to the same host.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from zerohop_agent.modelserver.response import Response, ResponseParser
from zerohop_agent.signals import SourceError
from zerohop_process.address import Address
from zerohop_snapshot.layout import UnhealthyReason

__all__ = ["BODY_LIMIT_BYTES", "Client", "Fetched", "tls_context"]

#: a page of 64 data-parallel ranks has 2.1 MB
BODY_LIMIT_BYTES = 8 * 1024 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Fetched:
    """One answer and when it was asked for (request written) and whole, monotonic nanoseconds."""

    response: Response
    requested_ns: int
    received_ns: int


def tls_context(*, verify: bool = True, ca_file: str | None = None) -> ssl.SSLContext:
    """Return the TLS settings for `https` endpoints. `verify=False` takes any certificate: pods have none that
    match."""
    context = ssl.create_default_context(cafile=ca_file)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Client:
    """One connection to one server, opened when needed and kept. One request at a time.

    `headers` are sent with every request. Closing it is the owner's duty.
    """

    def __init__(
        self,
        address: Address,
        *,
        tls: ssl.SSLContext | None = None,
        limit_bytes: int = BODY_LIMIT_BYTES,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._address = address
        self._tls = tls
        self._limit = limit_bytes
        # text/plain 0.0.4 keeps the colons in names; gzip would cost the server 1 ms per page in its event loop.
        fields = (("Host", str(address)), ("Accept-Encoding", "identity"), ("Connection", "keep-alive"), *headers)
        self._after_path = " HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields)
        self._connection: _Connection | None = None
        #: connections opened so far
        self.connections = 0
        #: where a path has moved to, as the server said
        self._moved: dict[str, str] = {}

    async def get(self, path: str, *, accept: str, timeout_s: float) -> Fetched:
        """Return the answer to `GET path`, whatever its status, after at most one redirect within the same host.

        Raises: SourceError with REFUSED, TIMEOUT, RESET, TOO_LARGE, NOT_METRICS (no HTTP), or HTTP_STATUS for a
        redirect
        that is not followed.
        """
        deadline_s = time.monotonic() + timeout_s
        known = self._moved.get(path)
        fetched = await self._exchange(known or path, accept, deadline_s)
        if known is not None and fetched.response.status != 200:
            del self._moved[path]
        if fetched.response.status not in _REDIRECTS:
            return fetched
        target = self._same_host_path(fetched.response)
        fetched = await self._exchange(target, accept, deadline_s)
        if fetched.response.status in _REDIRECTS:
            raise SourceError(UnhealthyReason.HTTP_STATUS, f"GET {path} is redirected more than once")
        if fetched.response.status == 200:
            self._moved[path] = target
        return fetched

    def close(self) -> None:
        """Drop the connection; the next `get` opens a new one."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def _same_host_path(self, response: Response) -> str:
        location = response.headers.get("location", "")
        try:
            parts = urlsplit(location)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.netloc:
            scheme = "https" if self._tls is not None else "http"
            same_port = (port or (443 if parts.scheme == "https" else 80)) == self._address.port
            if parts.scheme != scheme or parts.hostname != self._address.host.lower() or not same_port:
                raise SourceError(UnhealthyReason.HTTP_STATUS, f"redirected to another host: {location[:100]!r}")
        if not parts.path.startswith("/") or any(char <= " " for char in location):
            raise SourceError(UnhealthyReason.HTTP_STATUS, f"redirected to {location[:100]!r}")
        return parts.path + (f"?{parts.query}" if parts.query else "")

    async def _exchange(self, path: str, accept: str, deadline_s: float) -> Fetched:
        request = f"GET {path}{self._after_path}Accept: {accept}\r\n\r\n".encode("latin-1", "replace")
        for _ in range(2):
            connection, reused = self._connection, True
            if connection is None or not connection.usable:
                connection, reused = await self._connect(deadline_s), False
                self._connection = connection
                self.connections += 1
            parser = ResponseParser(self._limit)
            requested_ns = time.monotonic_ns()
            try:
                response = await connection.exchange(request, parser, deadline_s)
            except SourceError as error:
                connection.abort()
                # A server closes an idle connection whenever it likes; that says nothing about its health.
                if reused and error.reason is UnhealthyReason.RESET and not parser.started:
                    continue
                raise
            except BaseException:
                connection.abort()
                raise
            received_ns = time.monotonic_ns()
            if not response.keep_alive:
                connection.abort()
            return Fetched(response, requested_ns, received_ns)
        raise SourceError(UnhealthyReason.RESET, "the server closes every connection before it answers")

    async def _connect(self, deadline_s: float) -> _Connection:
        loop = asyncio.get_running_loop()
        host, port = self._address.host, self._address.port
        try:
            async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                _, connection = await loop.create_connection(lambda: _Connection(loop), host, port, ssl=self._tls)
        except TimeoutError:
            raise SourceError(UnhealthyReason.TIMEOUT, "no connection in time") from None
        except socket.gaierror as error:
            raise SourceError(UnhealthyReason.REFUSED, f"the name {host!r} is not known: {error.strerror}") from None
        except ssl.SSLError as error:
            raise SourceError(UnhealthyReason.REFUSED, f"no TLS: {error.reason or error}") from None
        except ConnectionResetError:
            raise SourceError(UnhealthyReason.RESET, "the connection was reset while it opened") from None
        except OSError as error:
            raise SourceError(UnhealthyReason.REFUSED, f"no connection: {error.strerror or error}") from None
        return connection


class _Connection(asyncio.Protocol):
    """Carries one exchange after another and resolves one future for each."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        self._answer: asyncio.Future[Response] | None = None

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, parser: ResponseParser, deadline_s: float) -> Response:
        if self._transport is None:
            raise SourceError(UnhealthyReason.RESET, "the connection ended before the request")
        self._parser = parser
        answer: asyncio.Future[Response] = self._loop.create_future()
        self._answer = answer
        timer = self._loop.call_later(max(0.0, deadline_s - time.monotonic()), self._time_is_up)
        try:
            self._transport.write(request)
            return await answer
        finally:
            timer.cancel()
            self._parser = self._answer = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None or self._answer is None or self._answer.done():
            self.abort()  # bytes that nobody asked for
            return
        try:
            response = parser.feed(data)
        except SourceError as error:
            self._fail(error)
            return
        if response is not None:
            self._answer.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        parser = self._parser
        if parser is None or self._answer is None or self._answer.done():
            return
        if exc is not None:
            self._fail(SourceError(UnhealthyReason.RESET, "the connection was reset"))
            return
        try:
            self._answer.set_result(parser.end())
        except SourceError as error:
            self._fail(error)

    def _time_is_up(self) -> None:
        self._fail(SourceError(UnhealthyReason.TIMEOUT, "no whole answer in time"))

    def _fail(self, error: SourceError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.abort()

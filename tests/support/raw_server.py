"""A TCP server that answers each request with whatever bytes a test wants, byte by byte if need be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from zerohop_process.address import Address

#: answers one request; returning False closes the connection
Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[bool]]


def http(body: bytes, *, status: str = "200 OK", headers: str = "", length: int | None = None) -> bytes:
    """Return a whole HTTP/1.1 answer; `length` overrides the true Content-Length."""
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n{headers}\r\n".encode() + body


@dataclass
class RawServer:
    """`requests` are the heads that came, `connections` how many were opened."""

    answer: Answer
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    server: asyncio.Server | None = None
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def address(self) -> Address:
        assert self.server is not None
        return Address("127.0.0.1", self.server.sockets[0].getsockname()[1])

    def paths(self) -> list[str]:
        return [head.split(b" ")[1].decode() for head in self.requests]

    def drop_connections(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                if not await self.answer(head, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def raw_server(answer: Answer | bytes, port: int = 0) -> AsyncIterator[RawServer]:
    """Serve on a free port of 127.0.0.1 until the end of the block."""

    async def constant(_head: bytes, writer: asyncio.StreamWriter) -> bool:
        assert isinstance(answer, bytes)
        writer.write(answer)
        return True

    served = RawServer(constant if isinstance(answer, bytes) else answer)
    served.server = await asyncio.start_server(served.serve, "127.0.0.1", port)
    try:
        yield served
    finally:
        served.server.close()
        served.drop_connections()
        await asyncio.sleep(0)

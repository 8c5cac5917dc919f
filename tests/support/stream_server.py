"""A TCP server whose connections each run one conversation, and leave nothing open when the test is over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from support.waiting import eventually_async

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def stream_server(talk: Talk) -> AsyncIterator[tuple[str, int]]:
    """Serve on a free port of 127.0.0.1; a conversation may end by what its peer does."""
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            await talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await eventually_async(lambda: not writers)

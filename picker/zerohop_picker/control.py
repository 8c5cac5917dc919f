"""The line between a supervisor and one worker: JSON objects, one a line, over a socket pair."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

LINE_LIMIT_BYTES = 16 * 1024 * 1024


class Control:
    """One end of the line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> Control:
        """Return the end that `sock` is."""
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=LINE_LIMIT_BYTES))

    def send(self, kind: str, **fields: Any) -> None:
        """Send one message; lost silently when the other end is gone."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None once the other end is gone."""
        try:
            line = await self._reader.readline()
        except (OSError, ValueError):
            return None
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

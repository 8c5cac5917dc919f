"""HTTP/1.1 as the API server speaks it: whole answers, and the events of a watch in chunks.

What ends an answer returns True where the connection stays open for the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    """One request, read whole."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def token(self) -> str | None:
        """The bearer token."""
        return self.headers.get("authorization", "").removeprefix("Bearer ") or None


async def read(reader: asyncio.StreamReader) -> Request | None:
    """The next request; None when the client goes away instead."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    url = urllib.parse.urlsplit(target)
    return Request(method, url.path, dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True)), headers, body)


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    """A Status object, as every failure has one."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def answer(writer: asyncio.StreamWriter, code: int, body: Any, headers: Mapping[str, str] | None = None) -> bool:
    """A whole answer."""
    content = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {code} -", "Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
    return True


def start_stream(writer: asyncio.StreamWriter) -> None:
    """The head of an answer whose events follow."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")


def event(writer: asyncio.StreamWriter, kind: str, body: Any) -> None:
    """One event of a watch."""
    chunk(writer, json.dumps({"type": kind, "object": body}).encode() + b"\n")


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Any bytes of a stream; nothing where the client has gone."""
    with contextlib.suppress(ConnectionError):
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def end(writer: asyncio.StreamWriter) -> bool:
    """The regular end of a stream."""
    writer.write(b"0\r\n\r\n")
    return True

"""Peers of a native front with small limits: one that misbehaves, and one beside it that must not notice."""

from __future__ import annotations

import socket
from typing import Self

from support.fronts import Exchange, Served, destination, request_body, request_headers
from zerohop_picker.fronts.limits import Limits

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
LIMITS = Limits(
    concurrent_streams=50, connections=6, control_burst=100, control_rate=10, held_bytes=300_000,
    handshake_ns=200_000_000, ping_ns=300_000_000, queued_bytes=2_000_000,
)  # fmt: skip


class Bystander:
    """Another peer with a stream open; it must be able to go on."""

    def __init__(self, served: Served) -> None:
        self._channel = served.channel()
        self._exchange = Exchange(self._channel)

    async def __aenter__(self) -> Self:
        await self._exchange.send(request_headers(), request_body(CHAT))
        return self

    async def __aexit__(self, *failure: object) -> None:
        try:
            if failure[0] is None:
                await self._exchange.send(request_body(b"", end=True))
                assert destination(await self._exchange.next()) is not None
                self._exchange.call.cancel()
        finally:
            await self._channel.close()


def path_of(served: Served) -> str:
    assert served.where.path is not None
    return served.where.path


def raw(served: Served) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(5)
    sock.connect(path_of(served))
    return sock


def until_closed(sock: socket.socket) -> bytes:
    """Return what the front says until it closes the connection."""
    heard = b""
    try:
        while data := sock.recv(65536):
            heard += data
    except ConnectionResetError:
        pass
    finally:
        sock.close()
    return heard


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def h2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload

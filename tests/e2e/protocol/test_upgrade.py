"""A WebSocket through a gateway that shows bodies both ways: neither side waits for the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.fleet import Fleet
from support.gateway import start_envoy
from support.processes import Processes
from support.stream_server import stream_server
from support.waiting import eventually_async

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

ASK = (
    b"GET /v1/realtime HTTP/1.1\r\nhost: models.example\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
AGREE = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Agrees to any upgrade, greets, and then sends back whatever comes, in capitals."""
    head = await reader.readuntil(b"\r\n\r\n")
    while head.startswith(b"GET /health"):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        head = await reader.readuntil(b"\r\n\r\n")
    writer.write(AGREE + b"hello")
    while data := await reader.read(1000):
        writer.write(data.upper())


def _allow_websockets(config: dict[str, Any]) -> None:
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["upgrade_configs"] = [{"upgrade_type": "websocket"}]


@pytest.mark.parametrize("response", ["skip", "observe"])
async def test_websocket(run: Processes, tmp_path: Path, response: str) -> None:
    async with stream_server(echo) as address:
        with Fleet(tmp_path / "shm", ["{}:{}".format(*address)]):
            socket = str(tmp_path / "p.sock")
            flags = ("--listen", f"unix:{socket}", "--health-checking", f"--response={response}")
            run.zerohop("picker", "--shm-dir", tmp_path / "shm", *flags)
            envoy = start_envoy(
                run, tmp_path, "istio-shaped", picker=[socket], servers=[address], change=_allow_websockets
            )
            await eventually_async(lambda: envoy.healthy("picker") == 1, 15)
            reader, writer = await asyncio.open_connection(envoy.host, envoy.port)
            async with asyncio.timeout(10):
                writer.write(ASK)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
                assert await reader.readexactly(5) == b"hello"
                for number in range(20):
                    writer.write(b"frame %02d" % number)
                    assert await reader.readexactly(8) == b"FRAME %02d" % number
            writer.close()
            await writer.wait_closed()

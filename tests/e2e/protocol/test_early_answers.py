"""A model server that answers before it has taken the whole request, behind a gateway that shows responses."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from support.fleet import Fleet
from support.gateway import Client, Envoy, start_envoy
from support.processes import Processes
from support.stream_server import stream_server
from support.waiting import eventually_async

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SIZES = (100, 40_000, 61_000, 200_000, 8_000_000)
ANSWER = b'{"error":"too long for me"}' * 40


async def answer_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers 413 as soon as it has read a request's head, and reads on."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        healthy = head.startswith(b"GET /health")
        answer = b"{}" if healthy else ANSWER
        status = b"200 OK" if healthy else b"413 Payload Too Large"
        keeps = b"keep-alive" if healthy else b"close"
        head = b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: %s\r\n\r\n"
        writer.write(head % (status, len(answer), keeps) + answer)
        await writer.drain()
        if not healthy:
            while await reader.read(65_536):
                pass
            break


@pytest.mark.parametrize("response", ["skip", "observe"])
async def test_its_answer_arrives_whole(run: Processes, tmp_path: Path, response: str) -> None:
    async with stream_server(answer_at_once) as address:
        with Fleet(tmp_path / "shm", ["{}:{}".format(*address)]):
            socket = str(tmp_path / "p.sock")
            flags = ("--listen", f"unix:{socket}", "--health-checking", f"--response={response}")
            run.zerohop("picker", "--shm-dir", tmp_path / "shm", *flags)
            envoy = start_envoy(run, tmp_path, "istio-shaped", picker=[socket], servers=[address])
            await eventually_async(lambda: envoy.healthy("picker") == 1, 15)
            answers = [await _answer(envoy, size) for size in SIZES for _ in range(8)]
            assert set(answers) == {(413, True)}


async def _answer(envoy: Envoy, size: int) -> tuple[int, bool]:
    """Status of the answer to an upload of `size` bytes, and whether its body is whole."""
    body = b'{"model":"m","prompt":"' + b"x" * size + b'"}'
    async with Client(envoy) as client:
        sending = asyncio.ensure_future(client.send("POST", "/v1/completions", body))
        async with asyncio.timeout(10):
            reply = await client.receive()
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await sending
    return reply.status, reply.body == ANSWER

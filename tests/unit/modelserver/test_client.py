"""What happens between the agent and a model server's socket: every way in which an answer can go wrong."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import time
import zlib

import pytest

from support.raw_server import RawServer, http, raw_server
from support.waiting import eventually_async
from zerohop_agent.modelserver.client import Client, tls_context
from zerohop_agent.signals import SourceError
from zerohop_process.address import Address
from zerohop_snapshot.layout import UnhealthyReason as R

PAGE = b"vllm:num_requests_waiting 3\n" * 40


async def get(
    server: RawServer, *, timeout_s: float = 5.0, limit_bytes: int = 100_000, path: str = "/metrics"
) -> bytes:
    client = Client(server.address, limit_bytes=limit_bytes)
    try:
        fetched = await client.get(path, accept="text/plain", timeout_s=timeout_s)
        assert fetched.response.status == 200
        return fetched.response.body
    finally:
        client.close()


async def reason_of(answer: bytes, *, close: bool = True, timeout_s: float = 5.0, limit_bytes: int = 100_000) -> R:
    async def once(_head: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer)
        await writer.drain()
        return not close

    async with raw_server(once) as server:
        with pytest.raises(SourceError) as caught:
            await get(server, timeout_s=timeout_s, limit_bytes=limit_bytes)
        return caught.value.reason


async def test_one_connection_carries_many_requests() -> None:
    async with raw_server(http(PAGE)) as server:
        client = Client(server.address)
        for _ in range(5):
            assert (await client.get("/metrics", accept="text/plain", timeout_s=5)).response.body == PAGE
        client.close()
        assert (server.connections, len(server.requests)) == (1, 5)
        head = server.requests[0].decode().lower()
        assert f"host: {server.address}\r\n" in head
        assert "accept-encoding: identity\r\n" in head


async def test_an_answer_in_single_bytes() -> None:
    async def slowly(_head: bytes, writer: asyncio.StreamWriter) -> bool:
        for byte in http(PAGE[:200]):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        return True

    async with raw_server(slowly) as server:
        assert await get(server) == PAGE[:200]


@pytest.mark.parametrize("cut", [1, 7, 4096])
async def test_chunks_with_extensions_and_trailers(cut: int) -> None:
    pieces = [PAGE[at : at + 97] for at in range(0, len(PAGE), 97)]
    body = b"".join(b"%X;x=y\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nTrailer: 1\r\n\r\n"
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body

    async def in_cuts(_head: bytes, writer: asyncio.StreamWriter) -> bool:
        for at in range(0, len(whole), cut):
            writer.write(whole[at : at + cut])
            await asyncio.sleep(0)
        return True

    async with raw_server(in_cuts) as server:
        client = Client(server.address)
        for _ in range(2):
            assert (await client.get("/m", accept="*/*", timeout_s=5)).response.body == PAGE
        client.close()
        assert server.connections == 1


async def test_a_body_that_ends_with_the_connection() -> None:
    async def old_style(_head: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + PAGE)
        return False

    async with raw_server(old_style) as server:
        assert await get(server) == PAGE


@pytest.mark.parametrize("encode", [gzip.compress, zlib.compress])
async def test_gzip_that_nobody_asked_for(encode: object) -> None:
    packed = encode(PAGE)  # type: ignore[operator]
    async with raw_server(http(packed, headers="Content-Encoding: gzip\r\n")) as server:
        assert await get(server) == PAGE


async def test_broken_cut_and_unknown_encodings_are_refused() -> None:
    packed = gzip.compress(PAGE)
    assert await reason_of(http(b"no gzip", headers="Content-Encoding: gzip\r\n")) is R.NOT_METRICS
    assert await reason_of(http(packed[:-9], headers="Content-Encoding: gzip\r\n")) is R.NOT_METRICS
    assert await reason_of(http(packed, headers="Content-Encoding: br\r\n")) is R.NOT_METRICS


async def test_a_gzip_bomb_is_cut_at_the_limit() -> None:
    bomb = gzip.compress(b"0" * 50_000_000)
    assert len(bomb) < 100_000
    assert await reason_of(http(bomb, headers="Content-Encoding: gzip\r\n")) is R.TOO_LARGE


async def test_too_large_by_length_by_chunks_and_without_end() -> None:
    assert await reason_of(http(b"", length=8_000_000)) is R.TOO_LARGE
    chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert await reason_of(head + chunk * 4) is R.TOO_LARGE
    assert await reason_of(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000) is R.TOO_LARGE


async def test_an_endless_header_block_is_refused() -> None:
    assert await reason_of(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 20_000) is R.TOO_LARGE


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"vllm:num_requests_waiting 3\n\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 10_000,
    ],
)
async def test_what_is_no_http(answer: bytes) -> None:
    assert await reason_of(answer, close=False) is R.NOT_METRICS


async def test_a_connection_that_ends_too_early() -> None:
    assert await reason_of(b"") is R.RESET
    assert await reason_of(b"HTTP/1.1 200 OK\r\nContent-") is R.RESET
    assert await reason_of(http(PAGE, length=len(PAGE) + 1)) is R.RESET
    assert await reason_of(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab") is R.RESET


async def test_a_reset_in_the_middle() -> None:
    async def reset(_head: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(http(PAGE)[:100])
        await writer.drain()
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        return False

    async with raw_server(reset) as server:
        with pytest.raises(SourceError) as caught:
            await get(server)
        assert caught.value.reason is R.RESET


async def test_silence_and_a_slow_drip_end_at_the_total_time() -> None:
    async def drip(_head: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        loop = asyncio.get_running_loop()

        def one_more() -> None:
            if not writer.transport.is_closing():
                writer.write(b"x")
                loop.call_later(0.01, one_more)

        one_more()
        return True

    async def nothing(_head: bytes, _writer: asyncio.StreamWriter) -> bool:
        return True

    for answer in (drip, nothing):
        async with raw_server(answer) as server:
            started = time.monotonic()
            with pytest.raises(SourceError) as caught:
                await get(server, timeout_s=0.15)
            assert caught.value.reason is R.TIMEOUT
            assert time.monotonic() - started < 3


async def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        client = Client(Address("127.0.0.1", held.getsockname()[1]))
        with pytest.raises(SourceError) as caught:
            await client.get("/metrics", accept="*/*", timeout_s=5)
    assert caught.value.reason is R.REFUSED


async def test_a_name_that_nobody_knows() -> None:
    client = Client(Address("no-such-host.invalid", 8000))
    with pytest.raises(SourceError) as caught:
        await client.get("/metrics", accept="*/*", timeout_s=10)
    assert caught.value.reason in (R.REFUSED, R.TIMEOUT)


async def test_plain_http_behind_https_is_a_refusal() -> None:
    async with raw_server(http(PAGE)) as server:
        client = Client(server.address, tls=tls_context(verify=False))
        with pytest.raises(SourceError) as caught:
            await client.get("/metrics", accept="*/*", timeout_s=0.3)
        assert caught.value.reason in (R.REFUSED, R.RESET, R.TIMEOUT)


async def test_a_server_that_drops_idle_connections_costs_nothing() -> None:
    async with raw_server(http(PAGE)) as server:
        client = Client(server.address)
        for _ in range(3):
            assert (await client.get("/metrics", accept="*/*", timeout_s=5)).response.body == PAGE
            server.drop_connections()
        client.close()
        assert server.connections == 3


async def test_a_server_that_closes_without_an_answer_each_time_is_a_reset() -> None:
    assert await reason_of(b"", close=True) is R.RESET


async def test_redirect_to_a_slash_is_followed_once_and_remembered() -> None:
    async def moved(head: bytes, writer: asyncio.StreamWriter) -> bool:
        if head.startswith(b"GET /metrics "):
            writer.write(http(b"", status="307 Temporary Redirect", headers="Location: /metrics/\r\n"))
        else:
            writer.write(http(PAGE))
        return True

    async with raw_server(moved) as server:
        client = Client(server.address)
        for _ in range(3):
            assert (await client.get("/metrics", accept="*/*", timeout_s=5)).response.body == PAGE
        client.close()
        assert server.paths() == ["/metrics", "/metrics/", "/metrics/", "/metrics/"]


@pytest.mark.parametrize(
    "location",
    ["http://evil.example/metrics", "https://127.0.0.1/metrics", "//evil.example/", "", "http://[", "relative"],
)
async def test_redirects_elsewhere_are_refused(location: str) -> None:
    answer = http(b"", status="302 Found", headers=f"Location: {location}\r\n")
    assert await reason_of(answer, close=False) is R.HTTP_STATUS


async def test_a_redirect_to_the_same_port_of_another_host_is_refused() -> None:
    async def elsewhere(_head: bytes, writer: asyncio.StreamWriter) -> bool:
        port = writer.get_extra_info("sockname")[1]
        writer.write(http(b"", status="302 Found", headers=f"Location: http://evil.example:{port}/metrics/\r\n"))
        return True

    async with raw_server(elsewhere) as server:
        with pytest.raises(SourceError) as caught:
            await get(server)
        assert caught.value.reason is R.HTTP_STATUS
        assert len(server.requests) == 1


async def test_a_redirect_loop_ends() -> None:
    answer = http(b"", status="301 Moved", headers="Location: /metrics\r\n")
    async with raw_server(answer) as server:
        with pytest.raises(SourceError) as caught:
            await get(server)
        assert caught.value.reason is R.HTTP_STATUS
        assert len(server.requests) == 2


async def test_bytes_after_the_answer_close_the_connection() -> None:
    async with raw_server(http(PAGE) + b"junk") as server:
        client = Client(server.address)
        for _ in range(2):
            assert (await client.get("/metrics", accept="*/*", timeout_s=5)).response.body == PAGE
        client.close()
        assert server.connections == 2


async def test_early_hints_are_read_over() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    async with raw_server(hints + http(PAGE)) as server:
        assert await get(server) == PAGE


async def test_cancelling_a_request_drops_its_connection() -> None:
    async def nothing(_head: bytes, _writer: asyncio.StreamWriter) -> bool:
        return True

    async with raw_server(nothing) as server:
        client = Client(server.address)
        task = asyncio.create_task(client.get("/metrics", accept="*/*", timeout_s=60))
        await eventually_async(lambda: server.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        client.close()

"""What a peer may not do to the native front, and that the other peer never notices."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Self

import grpc
import ngh2
import pytest

from support.fronts import Exchange, Served, destination, request_body, request_headers, serving
from support.h2gateway import HEADERS, H2Gateway, chat
from support.schedulers import FixedScheduler
from support.waiting import eventually_async
from zerohop_picker._pb import health_pb2
from zerohop_picker.fronts.limits import Limits
from zerohop_picker.protocol.core import ProtocolCore
from zerohop_picker.protocol.settings import ProtocolSettings

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
LIMITS = Limits(
    concurrent_streams=50, connections=6, control_burst=100, control_rate=10, held_bytes=300_000,
    handshake_ns=200_000_000, ping_ns=300_000_000, queued_bytes=2_000_000,
)  # fmt: skip


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    core = ProtocolCore(FixedScheduler(), ProtocolSettings(response="observe"))
    async with serving("native", core, f"unix:{tmp_path}/picker.sock", limits=LIMITS) as served:
        yield served


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


def faults(served: Served) -> set[str]:
    """Return why connections were ended."""
    samples = next(family[5] for family in served.metrics.page() if family[0] == "connection_faults")
    return {labels[0] for labels, _ in samples}


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def h2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        PREFACE + h2_frame(1, 4, 1, b"\xff\xff\xff\xff\xff\xff"),
        PREFACE + h2_frame(1, 4, 1, b"\x3f\xe1\xff\xff\xff\xff\xff\xff\x0f"),
        PREFACE + h2_frame(0, 0, 1, b"data before headers"),
        PREFACE + h2_frame(1, 4, 2, b"\x82"),
        PREFACE + h2_frame(4, 0, 0, b"\0\0\0"),
        PREFACE + h2_frame(6, 0, 0, b"short"),
        PREFACE + h2_frame(8, 0, 0, struct.pack(">I", 0)),
        PREFACE + h2_frame(9, 4, 1, b"\x82"),
        PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(100_000),
    ],
    ids=[
        "http1", "tls", "hpack index", "hpack table size", "data first", "even stream", "settings length",
        "ping length",         "window of zero", "lone continuation", "frame too large",
    ],
)  # fmt: skip
async def test_malformed_frames_end_their_own_connection(served: Served, bytes_sent: bytes) -> None:
    async with Bystander(served):
        sock = raw(served)
        sock.sendall(bytes_sent)
        await asyncio.to_thread(until_closed, sock)
        assert served.counted("connection_faults") >= 1


@pytest.mark.parametrize("frame", [h2_frame(6, 0, 0, b"pingping"), h2_frame(4, 0, 0, b"")], ids=["ping", "settings"])
async def test_a_flood_of_control_frames_ends_its_own_connection(served: Served, frame: bytes) -> None:
    async with Bystander(served):
        sock = raw(served)
        sock.sendall(PREFACE + frame * 90)
        await eventually_async(lambda: served.counted("connections") == 2)
        assert served.counted("connection_faults") == 0
        sock.sendall(frame * 50)
        heard = await asyncio.to_thread(until_closed, sock)
        assert h2_goaway(heard) == ngh2.ErrorCode.ENHANCE_YOUR_CALM
        assert faults(served) == {"too many PING or SETTINGS frames"}


async def test_a_flood_of_continuations_ends_its_own_connection(served: Served) -> None:
    async with Bystander(served):
        sock = raw(served)
        sock.sendall(PREFACE + h2_frame(1, 0, 1, b"\x82") + h2_frame(9, 0, 1, b"\x82") * 100)
        await asyncio.to_thread(until_closed, sock)
        assert served.counted("connection_faults") == 1


async def test_large_headers_end_their_own_stream_or_connection(served: Served) -> None:
    async with Bystander(served), served.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            method = channel.unary_unary("/grpc.health.v1.Health/Check")
            await method(b"", metadata=[(f"x-{number}", "y" * 1000) for number in range(100)])


async def test_streams_past_the_limit_are_refused_and_the_others_served(served: Served) -> None:
    async with Bystander(served):

        def flood() -> tuple[int, int]:
            gateway = H2Gateway(path_of(served))
            ids = [gateway.open(chat(100)) for _ in range(80)]
            while sum(gateway.replies(one) >= 2 for one in ids) + len(gateway.ended & set(ids)) < 80:
                gateway.pump()
            refused = len([one for one in ids if gateway.replies(one) < 2])
            gateway.close()
            return refused, len(ids)

        refused, asked = await asyncio.to_thread(flood)
        assert 0 < refused <= asked - 50


async def test_connections_past_the_limit_are_turned_away(served: Served) -> None:
    async with Bystander(served):
        socks = [raw(served) for _ in range(5)]
        for sock in socks:
            sock.sendall(PREFACE)
        await eventually_async(lambda: served.counted("connections") == 6)
        assert await asyncio.to_thread(until_closed, raw(served)) == b""
        for sock in socks:
            sock.close()


async def test_a_peer_that_says_nothing_is_let_go(served: Served) -> None:
    async with Bystander(served):
        assert b"" in await asyncio.to_thread(until_closed, raw(served))
        assert served.counted("connection_faults") == 1


async def test_a_peer_that_answers_no_ping_is_let_go(served: Served) -> None:
    async with Bystander(served):
        sock = raw(served)
        sock.sendall(PREFACE)
        heard = await asyncio.to_thread(until_closed, sock)
        assert b"zerohop!" in heard
        assert served.counted("connection_faults") == 1


async def test_slow_uploads_are_held_up_to_the_cap_and_their_own_connection_pays(served: Served) -> None:
    async with Bystander(served), served.channel() as channel:
        uploads = [Exchange(channel) for _ in range(4)]
        for number, upload in enumerate(uploads):
            await upload.send(request_headers(), request_body(b"x" * 90_000))
            held = min(number + 1, 3) * 90_000 + len(CHAT)
            await eventually_async(lambda held=held: served.counted("held_bytes") == held)  # type: ignore[misc]
        (reply,) = await uploads[0].rest()
        assert reply.immediate_response.status.code == 503
        assert b'"rejected-overloaded"' in reply.immediate_response.body
        for upload in uploads[1:]:
            upload.call.cancel()


async def test_a_message_that_is_announced_too_large_is_413_at_once(served: Served) -> None:
    limits = Limits.for_requests(100_000)
    core = served.core
    async with Bystander(served), serving("native", core, f"{served.where}2", limits=limits) as other:

        def announce() -> bytes:
            gateway = H2Gateway(path_of(other))
            stream = gateway.open([chat(100)[0], b"\0" + (500_000_000).to_bytes(4, "big") + b"x" * 1000])
            while stream not in gateway.ended:
                gateway.pump()
            gateway.close()
            return bytes(gateway.received[stream])

        assert b"too large" in await asyncio.to_thread(announce)
        assert core.counters.held_bytes == len(CHAT)


async def test_a_peer_that_takes_no_replies_costs_a_bounded_queue(tmp_path: Path) -> None:
    core = ProtocolCore(FixedScheduler(), ProtocolSettings(response="observe"))
    limits = Limits(queued_bytes=2_000_000, held_bytes=3_000_000)
    async with serving("native", core, f"unix:{tmp_path}/picker.sock", limits=limits) as served, Bystander(served):

        def greedy() -> None:
            # A window of nothing: every echoed byte has to wait here.
            h2 = ngh2.Connection(ngh2.Role.CLIENT)
            h2.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: 0})
            sock = raw(served)
            frames = chat(1_000_000)
            for _ in range(4):
                stream = h2.send_request(HEADERS)
                for frame in frames:
                    h2.send_data(stream, frame)
            with contextlib.suppress(OSError):  # what it said at the end may be lost with what we sent
                while True:
                    sock.sendall(h2.data_to_send())
                    data = sock.recv(65536)
                    if not data:
                        break
                    h2.receive_data(data)
                    h2.events()
            sock.close()

        await asyncio.to_thread(greedy)
        assert served.counted("connection_faults") == 1
        assert served.core.counters.held_bytes == len(CHAT)


async def test_thousands_of_resets_are_a_gateways_ordinary_day(served: Served) -> None:
    def resets() -> float:
        gateway = H2Gateway(path_of(served))
        took = gateway.exchange(chat(200), 2, count=5_000, concurrency=40)
        assert not gateway.closed
        gateway.close()
        return took

    async with Bystander(served):
        await asyncio.to_thread(resets)
        assert served.counted("connection_faults") == 0
        assert served.core.scheduler.in_flight == 0  # type: ignore[attr-defined]


async def test_a_reset_within_the_bytes_being_served_ends_its_stream_alone(served: Served) -> None:
    def reset_at_once() -> int:
        gateway = H2Gateway(path_of(served))
        frames = chat(100)
        for _ in range(20):
            stream = gateway.open(frames)
            gateway.flush()
            gateway.reset(stream)
        last = gateway.open(frames)
        while gateway.replies(last) < 2:
            gateway.pump()
        gateway.close()
        return last

    async with Bystander(served):
        await asyncio.to_thread(reset_at_once)
        assert served.counted("internal_errors") == 0


async def test_frames_split_at_every_byte_are_served_the_same(tmp_path: Path) -> None:
    def drip(served: Served) -> bytes:
        gateway = H2Gateway(path_of(served))
        stream = gateway.open(chat(60))
        data = gateway.h2.data_to_send()
        sock = raw(served)
        for position in range(len(data)):
            sock.sendall(data[position : position + 1])
        while gateway.replies(stream) < 2:
            gateway.h2.receive_data(sock.recv(65536))
            for event in gateway.h2.events():
                if isinstance(event, ngh2.DataReceived):
                    gateway.received[stream] += event.data
        sock.close()
        gateway.close()
        return bytes(gateway.received[stream])

    # Bytes that come one by one answer no PING: limits that are not made for tests.
    core = ProtocolCore(FixedScheduler(), ProtocolSettings(response="observe"))
    async with serving("native", core, f"unix:{tmp_path}/p.sock") as served, Bystander(served):
        assert b"10.0.0.1:8000,10.0.0.2:8000" in await asyncio.to_thread(drip, served)


async def test_plaintext_and_old_tls_on_a_tls_port_end_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core = ProtocolCore(FixedScheduler())
    async with serving("native", core, "127.0.0.1:0", tls=True, limits=LIMITS) as served:
        assert served.where.address is not None
        where = (served.where.address.host, served.where.address.port)

        def plaintext() -> bytes:
            sock = socket.create_connection(where, 10)
            sock.sendall(PREFACE)
            return until_closed(sock)

        def handshake(change: Callable[[ssl.SSLContext], None]) -> str | None:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            change(context)
            with socket.create_connection(where, 10) as sock, context.wrap_socket(sock) as secure:
                return f"{secure.version()} {secure.selected_alpn_protocol()}"

        await asyncio.to_thread(plaintext)

        def old(context: ssl.SSLContext) -> None:
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1

        with pytest.warns(DeprecationWarning, match="TLSv1_1"), pytest.raises((ssl.SSLError, OSError)):
            await asyncio.to_thread(handshake, old)
        new = await asyncio.to_thread(handshake, lambda context: context.set_alpn_protocols(["h2", "http/1.1"]))
        assert new == "TLSv1.3 h2"
        async with served.channel() as channel:
            method = channel.unary_unary("/grpc.health.v1.Health/Check")
            reply = await method(health_pb2.HealthCheckRequest(service="liveness").SerializeToString())
            assert health_pb2.HealthCheckResponse.FromString(reply).status == 1
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def h2_goaway(heard: bytes) -> int | None:
    """Return the error code of the last GOAWAY in what a front said."""
    at, code = 0, None
    while at + 9 <= len(heard):
        size, kind = int.from_bytes(heard[at : at + 3], "big"), heard[at + 3]
        if kind == 7:
            code = int.from_bytes(heard[at + 13 : at + 17], "big")
        at += 9 + size
    return code

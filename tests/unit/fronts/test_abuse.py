"""What a peer may not do to the native front, and that the other peer never notices."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path

import ngh2
import pytest

from support.fronts import Served, serving
from support.h2gateway import H2Gateway, chat
from support.schedulers import FixedScheduler
from support.waiting import eventually_async
from unit.fronts.peers import LIMITS, PREFACE, Bystander, h2_frame, path_of, raw, until_closed
from zerohop_picker._pb import health_pb2
from zerohop_picker.protocol.core import ProtocolCore
from zerohop_picker.protocol.settings import ProtocolSettings


def faults(served: Served) -> set[str]:
    """Return why connections were ended."""
    samples = next(family[5] for family in served.metrics.page() if family[0] == "connection_faults")
    return {labels[0] for labels, _ in samples}


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

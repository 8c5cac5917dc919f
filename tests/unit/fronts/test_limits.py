"""What one peer may take of the native front, and that the other peer never notices."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc
import ngh2
import pytest

from support.fronts import Exchange, Served, request_body, request_headers, serving
from support.h2gateway import HEADERS, H2Gateway, chat
from support.schedulers import FixedScheduler
from support.waiting import eventually_async
from unit.fronts.peers import CHAT, PREFACE, Bystander, path_of, raw, until_closed
from zerohop_picker.fronts.limits import Limits
from zerohop_picker.protocol.core import ProtocolCore
from zerohop_picker.protocol.settings import ProtocolSettings


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

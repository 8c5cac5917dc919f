"""Peers of the native front that read slowly or not at all, and what they say when they leave."""

from __future__ import annotations

import asyncio
import select
import socket
from pathlib import Path

import ngh2
import pytest

from support.fronts import Served, serving
from support.h2gateway import HEADERS, chat
from support.schedulers import FixedScheduler
from support.waiting import eventually_async
from zerohop_picker.fronts.limits import MIB, Limits
from zerohop_picker.protocol.core import ProtocolCore
from zerohop_picker.protocol.settings import ProtocolSettings

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def connected(served: Served) -> socket.socket:
    assert served.where.path is not None
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(20)
    sock.connect(served.where.path)
    return sock


def observing() -> ProtocolCore:
    return ProtocolCore(FixedScheduler(), ProtocolSettings(response="observe"))


async def test_a_peer_that_stops_reading_does_not_stay_for_ever(tmp_path: Path) -> None:
    core = observing()
    limits = Limits(ping_ns=200_000_000)
    async with serving("native", core, f"unix:{tmp_path}/p.sock", limits=limits) as served:
        # A megabyte fits the write buffer, so nothing is paused; but it will not leave it, either.
        h2 = ngh2.Connection(ngh2.Role.CLIENT)
        h2.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: 1 << 24})
        h2.set_local_window_size(1 << 24)
        stream = h2.send_request(HEADERS)
        for frame in chat(2 * MIB, response=True):
            h2.send_data(stream, frame)
        with connected(served) as sock:

            def upload() -> None:
                sent = h2.data_to_send()
                while sent:
                    sock.sendall(sent)
                    if not core.counters.picks:
                        h2.receive_data(sock.recv(1 << 16))
                    sent = h2.data_to_send()

            await asyncio.to_thread(upload)
            await eventually_async(lambda: core.counters.picks == 1)
            assert core.scheduler.in_flight == 1  # type: ignore[attr-defined]
            await eventually_async(lambda: served.counted("connections") == 0)
            assert core.scheduler.in_flight == 0  # type: ignore[attr-defined]


async def test_bodies_that_end_together_are_no_fault_of_a_peer_that_takes_them_one_by_one(tmp_path: Path) -> None:
    """Many held bodies become replies in one moment: more than a connection may queue, and what it was let hold."""
    core = observing()
    limits = Limits(queued_bytes=2 * MIB, held_bytes=16 * MIB)
    async with serving("native", core, f"unix:{tmp_path}/p.sock", limits=limits) as served:

        def upload() -> dict[int, int]:
            h2 = ngh2.Connection(ngh2.Role.CLIENT)
            h2.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: MIB})
            h2.set_local_window_size(MIB)
            streams = {h2.send_request(HEADERS): chat(MIB, response=True) for _ in range(8)}
            with connected(served) as sock:

                def exchange() -> None:
                    sending = h2.data_to_send()
                    sock.sendall(sending)
                    if sending and not select.select([sock], [], [], 0)[0]:
                        return  # what was sent last may need no answer
                    h2.receive_data(sock.recv(1 << 16))
                    for event in h2.events():
                        if isinstance(event, ngh2.DataReceived):
                            got[event.stream_id] += len(event.data)
                        assert not isinstance(event, ngh2.ConnectionClosed)

                got = dict.fromkeys(streams, 0)
                for stream, frames in streams.items():
                    for frame in frames[:-1]:
                        h2.send_data(stream, frame)
                while h2.queued_body_size():
                    exchange()
                for stream, frames in streams.items():
                    h2.send_data(stream, frames[-1])
                while min(got.values()) < MIB:
                    exchange()
            return got

        assert len(await asyncio.to_thread(upload)) == 8
        assert served.counted("connection_faults") == 0
        await eventually_async(lambda: served.counted("connections") == 0)
        assert served.front.queued_bytes == served.front.held_bytes == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("code", [0, 2, 11, 0xDEADBEEF])
async def test_a_goaway_of_any_code_ends_its_connection_and_nothing_else(
    tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving("native", observing(), f"unix:{tmp_path}/p.sock") as served:
        with connected(served) as sock:
            goaway = bytes((0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0)) + code.to_bytes(4, "big")
            sock.sendall(PREFACE + goaway)

            def heard() -> bytes:
                everything = b""
                while data := sock.recv(4096):
                    everything += data
                return everything

            await asyncio.to_thread(heard)
        await eventually_async(lambda: served.counted("connections") == 0)
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []

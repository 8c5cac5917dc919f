"""Any bytes on one connection of the native front: no failure inside, nothing left behind, and the others go on."""

from __future__ import annotations

import asyncio
import itertools
import random
from time import monotonic_ns
from typing import Any

import ngh2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fronts import extproc_services
from support.fuzzing import damaged, play_for
from support.h2gateway import HEADERS, chat, grpc_frame
from support.schedulers import FixedScheduler
from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_picker.fronts.framing import FramingError, MessageReader
from zerohop_picker.fronts.health_calls import health_services
from zerohop_picker.fronts.limits import MIB, Limits
from zerohop_picker.fronts.native import NativeFront
from zerohop_picker.fronts.native_connection import NativeConnection
from zerohop_picker.health import Health
from zerohop_picker.metrics import Metrics
from zerohop_picker.protocol import ProtocolCore, ProtocolSettings

LIMITS = Limits(held_bytes=100_000, queued_bytes=50_000, message_bytes=60_000, control_burst=50, concurrent_streams=20)
CHECK: list[ngh2.Header] = [*HEADERS[:2], (b":path", b"/grpc.health.v1.Health/Watch"), *HEADERS[3:]]


class Wire(asyncio.Transport):
    """A transport that only remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Never full."""

    def pause_reading(self) -> None:
        """Nothing is read here."""

    resume_reading = pause_reading


class World:
    """A front without sockets, and a well-behaved peer with a request half sent."""

    def __init__(self) -> None:
        self.scheduler = FixedScheduler()
        self.core = ProtocolCore(
            self.scheduler, ProtocolSettings(response="observe", max_request_bytes=50_000, max_held_bytes=90_000)
        )
        self.metrics = Metrics()
        self.front = NativeFront(LIMITS, self.metrics)
        self._services = {**extproc_services(self.core), **health_services(Health())}
        self.good, self.good_wire = self.connect()
        self.client = ngh2.Connection(ngh2.Role.CLIENT)
        self.client.initiate_connection({})
        self.stream = self.client.send_request(HEADERS)
        *begin, self._last = chat(500)
        for frame in begin:
            self.client.send_data(self.stream, frame)
        self.good.received(self.client.data_to_send())

    def connect(self) -> tuple[NativeConnection, Wire]:
        connection, wire = NativeConnection(self.front, self._services), Wire()
        connection.connection_made(wire)
        return connection, wire

    def bad_peer(self, pieces: list[bytes]) -> None:
        connection, wire = self.connect()
        for piece in pieces:
            if wire.closed:
                break
            connection.received(piece)
        connection.sweep(monotonic_ns())
        connection.connection_lost(None)

    def check(self) -> None:
        """Nothing of the bad peer is left, and the good one gets its answer."""
        assert self.front.connections == {self.good}
        assert (self.front.open_streams, self.front.queued_bytes) == (1, 0)
        assert self.front.held_bytes == self.core.counters.held_bytes > 0
        assert self.scheduler.in_flight == 0
        assert all(len(ticket.outcomes) == 1 for ticket in self.scheduler.tickets)
        (broken,) = [family[5] for family in self.metrics.page() if family[0] == "internal_errors"]
        assert sum(value for _, value in broken) == 0
        self.client.send_data(self.stream, self._last)
        self.good.received(self.client.data_to_send())
        assert b"10.0.0.1:8000" in self.good_wire.written
        self.good.connection_lost(None)
        assert (self.front.open_streams, self.front.held_bytes) == (0, 0)


def conversation(rng: random.Random) -> bytes:
    """What a gateway could send: a few streams, cut, reset and ended at random."""
    h2 = ngh2.Connection(ngh2.Role.CLIENT, ngh2.Configuration(peer_max_concurrent_streams=100))
    h2.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: rng.choice((0, 100, 1 << 20))})
    answer = pb.ProcessingRequest()
    answer.response_body.body = b"data: [DONE]\n\n"
    for _ in range(rng.randrange(1, 6)):
        stream = h2.send_request(rng.choice((HEADERS, CHECK, HEADERS[:5])))
        frames = [*chat(rng.choice((10, 3000, 70_000)), response=True), grpc_frame(answer), b"\0\0\0\0\0"]
        for frame in frames[: rng.randrange(len(frames) + 1)]:
            if rng.random() < 0.1:
                frame = damaged(frame, rng)
            if frame:
                h2.send_data(stream, frame)
        ending = rng.randrange(4)
        if ending == 0:
            h2.reset_stream(stream, ngh2.ErrorCode.CANCEL)
        elif ending == 1:
            h2.send_data(stream, b"", end_stream=True)
        if rng.random() < 0.2:
            h2.ping(b"12345678")
    return bytes(h2.data_to_send())


def damaged_frames(data: bytes, rng: random.Random) -> bytes:
    """Change the heads of some frames, or swap, repeat and drop whole ones."""
    preface, at, frames = data[:24], 24, []
    while at + 9 <= len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3], "big")
        frames.append(bytearray(data[at:end]))
        at = end
    for _ in range(rng.randrange(4)):
        place, kind = rng.randrange(len(frames)), rng.randrange(5)
        if kind == 0:
            frames[place][3] = rng.choice((*range(11), 0x10, 0xFF))
        elif kind == 1:
            frames[place][4] ^= 1 << rng.randrange(8)
        elif kind == 2:
            frames[place][5:9] = rng.choice((0, 1, 2, 3, 5, 99, 1 << 31)).to_bytes(4, "big")
        elif kind == 3:
            frames.insert(place, frames[rng.randrange(len(frames))][:])
        elif len(frames) > 1:
            del frames[place]
    return preface + b"".join(frames)


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """Return `data` in pieces of random length, in some rounds of single bytes."""
    if rng.random() < 0.1 and len(data) < 3000:
        return [data[at : at + 1] for at in range(len(data))]
    edges = sorted({0, len(data), *(rng.randrange(len(data) + 1) for _ in range(rng.randrange(5)))})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def play(rng: random.Random) -> None:
    data = conversation(rng)
    kind = rng.randrange(3)
    if kind == 0:
        data = damaged_frames(data, rng)
    elif kind == 1:
        data = data[:24] + damaged(data[24:], rng)
    world = World()
    world.bad_peer(cut(data, rng))
    world.check()


@pytest.mark.fuzz
@pytest.mark.timeout(150)
async def test_damaged_connections() -> None:
    play_for(30, play)


@pytest.mark.parametrize("seed", range(40))
async def test_some_damaged_connections(seed: int) -> None:
    play(random.Random(seed))


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_any_bytes_are_messages_or_a_framing_error(data: bytes, cuts: list[int]) -> None:
    """However they are cut, the same messages come out before the same end."""

    def read(pieces: list[bytes]) -> tuple[list[bytes], bool]:
        reader = MessageReader(MIB)
        got: list[bytes] = []
        for piece in pieces:
            try:
                got += reader.feed(piece)
            except FramingError:
                return got, True
            assert reader.held_bytes <= len(data)
        return got, False

    edges = sorted({0, len(data), *(min(at, len(data)) for at in cuts)})
    whole, failed = read([data])
    some, failed_too = read([data[start:end] for start, end in itertools.pairwise(edges)])
    assert failed is failed_too
    assert some[: len(whole)] == whole
    assert failed or some == whole

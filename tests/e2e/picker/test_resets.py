"""Streams cancelled at random points, as clients that hang up make a gateway do it all day long."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from support.fleet import Fleet
from support.h2gateway import H2Gateway, chat, grpc_frame, resident_bytes
from support.processes import Processes
from support.waiting import eventually
from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_snapshot import PeerCells, SnapshotReader

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

ROUND = 1_000


def answer() -> list[bytes]:
    """Return the framed messages of a model server's answer."""
    head, chunk, end = pb.ProcessingRequest(), pb.ProcessingRequest(), pb.ProcessingRequest()
    for name, value in {":status": "200", "content-type": "text/event-stream"}.items():
        header = head.response_headers.headers.headers.add()
        header.key, header.raw_value = name, value.encode()
    chunk.response_body.body = b"data: token\n\n"
    end.response_body.end_of_stream = True
    return [grpc_frame(message) for message in (head, chunk, chunk, end)]


def cancel_everywhere(gateway: H2Gateway, rng: random.Random, count: int) -> None:
    """Open `count` streams and reset each after a random part of its transcript, some within the same write."""
    frames = [*chat(3_000, response=True, chunk_bytes=1_000), *answer()]
    opened: list[int] = []
    for _ in range(count):
        stream = gateway.open(frames[: rng.randrange(len(frames) + 1)])
        if rng.random() < 0.3:
            gateway.flush()
        opened.append(stream)
        while len(opened) > rng.randrange(64):
            gateway.reset(opened.pop(rng.randrange(len(opened))))
        if rng.random() < 0.05:
            last = gateway.open(chat(100, response=True))
            while gateway.replies(last) < 2:
                gateway.pump()
            gateway.reset(last)
    for stream in opened:
        gateway.reset(stream)
    last = gateway.open(chat(100, response=True))
    while gateway.replies(last) < 2:  # everything before it has been served by then
        gateway.pump()
    gateway.reset(last)
    gateway.flush()
    gateway.ended.clear()
    gateway.received.clear()


@pytest.mark.parametrize("front", ["native", "grpcio"])
@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_streams_cancelled_anywhere_leave_nothing(run: Processes, tmp_path: Path, front: str, rounds: int) -> None:
    rng = random.Random(rounds)
    with Fleet(tmp_path, ["10.0.0.1:8000", "10.0.0.2:8000"]) as fleet:
        picker = run.zerohop(
            "picker", "--shm-dir", tmp_path, "--listen", f"unix:{tmp_path}/p", f"--front={front}", "--response=observe"
        )
        gateway = H2Gateway(f"{tmp_path}/p")
        sizes = []
        for _ in range(rounds):
            cancel_everywhere(gateway, rng, ROUND)
            sizes.append(resident_bytes(picker.pid))
        snapshot = SnapshotReader(tmp_path).read()
        assert snapshot is not None
        generations = list(snapshot.column("generation"))
        peers = PeerCells(tmp_path)

        def in_flight() -> int:
            return sum(peers.in_flight(row, generations[row]) for row in range(len(fleet.addresses)))

        eventually(lambda: in_flight() == 0, what="nothing in flight")
        assert sum(cell.picks(row, generations[row]) for cell in peers.live() for row in range(2)) > rounds * ROUND / 4
        gateway.close()
        assert " error " not in picker.stop()
        if rounds > 10:
            # The allocator settles within the first half; after that, 100 bytes lost per stream would show as 2 MB.
            middle, last = statistics.median(sizes[20:30]), statistics.median(sizes[40:50])
            assert last - middle < 1_500_000, [size >> 10 for size in sizes]

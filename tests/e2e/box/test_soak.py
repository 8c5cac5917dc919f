"""Ten minutes at 200 requests/s, with clients that leave: memory stays flat, and nothing stays in flight."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence

import psutil
import pytest

from support.waiting import eventually_async
from zerohop_console.demo.box import Box
from zerohop_console.demo.client import Client, post
from zerohop_console.demo.watch import NodeWatch

DURATION_S = float(os.environ.get("ZEROHOP_SOAK_SECONDS", "600"))
RATE = 200.0
#: memory that a process may gain between the first third and the last one; the allocator alone moves by about 1 MB
GROWTH_LIMIT_BYTES = 4_000_000

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("box"), pytest.mark.timeout(DURATION_S + 120)]


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with Box() as made:
        await made.start_mock_servers(("a", "b"), "--max-num-seqs", "256", "--slow-factor", "2")
        await made.start_path(body_mode="FULL_DUPLEX_STREAMED", observe=True)
        yield made


class Churn:
    """Chats of which every fifth is left by its client at a random moment."""

    def __init__(self, port: int) -> None:
        self._client = Client("127.0.0.1", port)
        self._dice = random.Random(3)
        self.done = 0
        self.left = 0
        self.complaints: list[str] = []

    async def run(self, duration_s: float) -> None:
        start_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            index = 0
            while (elapsed_s := time.monotonic() - start_s) < duration_s:
                group.create_task(self._one(index))
                index += 1
                await asyncio.sleep(max(0.0, index / RATE - elapsed_s))
        self._client.close()

    async def _one(self, index: int) -> None:
        body = {
            "model": "tiny",
            "stream": index % 2 == 0,
            "max_tokens": self._dice.randint(1, 6),
            "messages": [{"role": "user", "content": f"question {index} " * self._dice.randint(1, 60)}],
        }
        request = self._client.send(post("/v1/chat/completions", body))
        if index % 5:
            outcome = await request
            self.done += 1
            if not outcome.ok:
                self.complaints.append(outcome.complaint())
            return
        try:
            async with asyncio.timeout(self._dice.random() * 0.12):
                await request
        except TimeoutError:
            self.left += 1


async def soak(box: Box, duration_s: float) -> tuple[Churn, dict[str, list[int]]]:
    """Run the churn and return it with the memory of each process, sampled about 100 times."""
    assert box.agent is not None
    assert box.picker is not None
    supervisor = psutil.Process(box.picker.pid)
    watched = {"agent": psutil.Process(box.agent.pid), "supervisor": supervisor}
    watched |= {f"worker {index}": worker for index, worker in enumerate(supervisor.children())}
    watched |= {f"server {s.name}": psutil.Process(s.child.pid) for s in box.servers if s.child is not None}
    samples: dict[str, list[int]] = {name: [] for name in (*watched, "envoy")}
    churn = Churn(box.picked_port)
    running = asyncio.create_task(churn.run(duration_s))
    while not running.done():
        for name, process in watched.items():
            samples[name].append(process.memory_info().rss)
        # What Envoy holds; its resident memory is that of its allocator, which keeps the pages of the largest burst.
        samples["envoy"] += (await box.envoy_stat("^server.memory_allocated$")).values()
        await asyncio.wait({running}, timeout=duration_s / 100)
    await running
    return churn, samples


def growth_bytes(samples: Sequence[int]) -> float:
    """How much the median of the last third lies above that of the second, scaled to three thirds."""
    third = len(samples) // 3
    return (statistics.median(samples[-third:]) - statistics.median(samples[third:-third])) * 2


async def nothing_in_flight(box: Box) -> None:
    watch = NodeWatch(box.shm_dir)
    await eventually_async(
        lambda: {name: seen.in_flight for name, seen in watch.endpoints().items()} == {"a": 0, "b": 0},
        15,
        what="no request is in flight any more",
    )


async def test_requests_that_clients_leave_are_in_flight_no_more(box: Box) -> None:
    churn, _ = await soak(box, 5.0)
    assert churn.complaints == []
    assert churn.left > 30
    await nothing_in_flight(box)


@pytest.mark.slow
async def test_ten_minutes_of_load_keep_memory_flat(box: Box) -> None:
    churn, samples = await soak(box, DURATION_S)
    assert churn.complaints == []
    assert churn.done + churn.left > RATE * DURATION_S * 0.75
    await nothing_in_flight(box)
    grown = {name: growth_bytes(values) for name, values in samples.items()}
    print({name: f"{values[-1] / 1e6:.1f} MB, {grown[name] / 1e6:+.2f} MB" for name, values in samples.items()})
    assert {name: value for name, value in grown.items() if value > GROWTH_LIMIT_BYTES} == {}

"""Processes are killed while requests run; no request is lost that another endpoint could serve."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from support.waiting import eventually_async
from zerohop_console.demo.box import Box
from zerohop_console.demo.children import Child
from zerohop_console.demo.client import Client, Outcome, post
from zerohop_console.demo.watch import NodeWatch
from zerohop_snapshot.reader import SnapshotReader

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("box"), pytest.mark.timeout(120)]

RATE = 50.0


class Traffic:
    """A steady stream of whole (not streamed) chats through the picker, until stopped."""

    def __init__(self, port: int, *, stream: bool = False) -> None:
        self._client = Client("127.0.0.1", port, keep_body=True)
        self._stream = stream
        self._stopping = asyncio.Event()
        self.outcomes: list[tuple[float, Outcome]] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            index = 0
            while not self._stopping.is_set():
                group.create_task(self._one(index))
                index += 1
                try:
                    await asyncio.wait_for(self._stopping.wait(), 1 / RATE)
                except TimeoutError:
                    continue

    async def _one(self, index: int) -> None:
        body = {
            "model": "tiny",
            "max_tokens": 12,
            "stream": self._stream,
            "messages": [{"role": "user", "content": f"question {index}"}],
        }
        sent_s = time.monotonic()
        self.outcomes.append((sent_s, await self._client.send(post("/v1/chat/completions", body))))

    async def more(self, count: int) -> None:
        """Wait for that many more answers."""
        goal = len(self.outcomes) + count
        await eventually_async(lambda: len(self.outcomes) >= goal, 30, what=f"{count} more answers")

    async def stop(self) -> list[str]:
        """End and return what went wrong, one line per failed request."""
        self._stopping.set()
        await self._task
        self._client.close()
        return [outcome.complaint() for _, outcome in self.outcomes if not outcome.ok]

    def served_since(self, moment_s: float) -> set[str]:
        """The names of the servers that answered requests sent after `moment_s`."""
        return {(out.headers or {})["x-mock-server"] for sent, out in self.outcomes if sent > moment_s and out.ok}


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with Box() as made:
        await made.start_mock_servers(("a", "b", "c"))
        await made.start_path()
        watch = NodeWatch(made.shm_dir)
        await eventually_async(lambda: sum(seen.usable for seen in watch.endpoints().values()) == 3, 20)
        yield made


def kill(child: Child | None) -> None:
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)


async def test_a_killed_agent_costs_no_request_and_its_successor_goes_on(box: Box) -> None:
    traffic = Traffic(box.picked_port)
    await traffic.more(30)
    kill(box.agent)
    sequence = _sequence(box.shm_dir)
    # Past the bound at which the values count as stale, the pickers fall back to what they know themselves.
    await traffic.more(int(RATE * 3.5))
    since_s = time.monotonic()
    await traffic.more(30)
    assert traffic.served_since(since_s) == {"a", "b", "c"}
    child = await box.start_agent()
    await child.ready()
    await traffic.more(30)
    assert await traffic.stop() == []
    assert _sequence(box.shm_dir) > sequence


async def test_a_killed_picker_worker_costs_no_request_and_comes_back(box: Box) -> None:
    assert box.picker is not None
    supervisor = psutil.Process(box.picker.pid)
    workers = {worker.pid for worker in supervisor.children()}
    assert len(workers) >= 2
    traffic = Traffic(box.picked_port)
    await traffic.more(30)
    for victim in sorted(workers):
        os.kill(victim, signal.SIGKILL)
        await traffic.more(60)
        await eventually_async(
            lambda: len({child.pid for child in supervisor.children() if child.status() != "zombie"}) == len(workers),
            15,
            what="the supervisor has started another worker",
        )
        await eventually_async(lambda: _healthy_workers(box), 15, what="Envoy sees both workers again")
    assert await traffic.stop() == []
    assert not workers & {child.pid for child in supervisor.children()}


async def test_a_killed_model_server_costs_only_the_answers_that_it_had_begun(box: Box) -> None:
    for server in box.servers:
        await box.admin(server, slow_factor=3.0)
    whole, streamed = Traffic(box.picked_port), Traffic(box.picked_port, stream=True)
    await whole.more(60)
    assert whole.served_since(0) == {"a", "b", "c"}
    kill(box.servers[1].child)
    killed_s = time.monotonic()
    await whole.more(int(RATE * 2))
    complaints = await streamed.stop()
    assert await whole.stop() == []
    assert whole.served_since(killed_s + 1.0) == {"a", "c"}
    # A stream that has begun cannot be served by another; no other stream is lost.
    assert all("after the answer had begun" in complaint for complaint in complaints), complaints
    lost = {(outcome.headers or {}).get("x-mock-server") for _, outcome in streamed.outcomes if not outcome.ok}
    assert lost <= {"b"}


async def _healthy_workers(box: Box) -> bool:
    return (await box.envoy_stat("cluster.picker.membership_healthy"))["cluster.picker.membership_healthy"] == 2


def _sequence(shm_dir: Path) -> int:
    snapshot = SnapshotReader(shm_dir).read()
    return snapshot.sequence if snapshot is not None else 0

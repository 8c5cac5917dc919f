"""Time of one decision, from reading the snapshot to the ordered list, by pool size, pipeline and prompt.

Budgets (docs/performance.md): 40 / 60 / 150 us at 16 / 256 / 1,024 endpoints. `fresh`: the agent has published since
the last decision, so the copy and every derived array are made anew; `same`: it has not. Run: python -m bench.decision
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np

from zerohop_picker.request.kinds import RequestKind
from zerohop_picker.request.model import LLMRequest
from zerohop_picker.scheduling import StandardScheduler, load
from zerohop_picker.scheduling_contract import Decision, Outcome
from zerohop_snapshot import Flag, PeerCells, PickerCell, SnapshotReader, SnapshotWriter
from zerohop_snapshot.prefix import PrefixDirectory

BUDGET_US = {16: 40, 256: 60, 1024: 150}
GIE = Path(__file__).parent.parent / "manifests/profiles/gie.yaml"


class Node:
    """A snapshot of ``count`` endpoints, its writer, and one worker's scheduler."""

    def __init__(self, shm_dir: Path, count: int, config: str) -> None:
        self.writer = SnapshotWriter(shm_dir, endpoint_capacity=count)
        draw = random.Random(1)
        endpoints = {}
        for index in range(count):
            row = self.writer.add_endpoint(f"pod-{index}")
            assert row is not None
            endpoints[row] = {"address": f"10.0.{index // 250}.{index % 250 + 1}:8000", "name": f"default/pod-{index}"}
            table = self.writer.endpoints
            table.set(row, "flags", int(Flag.USED))
            for name in ("waiting", "running"):
                table.set(row, name, draw.randrange(10))
            table.set(row, "kv_cache_usage", draw.random())
            table.set(row, "slowdown", 1.0)
            table.set(row, "scrape_interval_s", 0.05)
        self.rows = list(endpoints)
        self.writer.set_cold(msgpack.packb({"v": 1, "pools": [], "adapters": [], "endpoints": endpoints}))
        self.cell = PickerCell(shm_dir, "bench", max(count, 256))
        self.scheduler = StandardScheduler(
            load(config, "bench"), SnapshotReader(shm_dir, node=False), self.cell, PeerCells(shm_dir),
            PrefixDirectory(shm_dir, endpoint_capacity=max(count, 256)), seed=1,
        )  # fmt: skip
        self.publish()

    def publish(self) -> None:
        now = time.monotonic_ns()
        for row in self.rows:
            self.writer.endpoints.set(row, "observed_ns", now)
        self.writer.publish(now)

    def close(self) -> None:
        self.cell.close()
        self.writer.close()


def request(prompt_bytes: int, number: int = 0) -> LLMRequest:
    content = f"{number} " + "x" * prompt_bytes
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    made = LLMRequest("r", kind=RequestKind.CHAT, model="m", body=body)
    made.canonical_prompt()  # parsing is not part of the decision
    return made


def timed(node: Node, prompt_bytes: int, repeat: int, between: Callable[[], None] | None) -> float:
    """CPU time of one decision in us, the lower quartile: what the machine's other work adds is not ours."""
    # Conversations: each has been to one endpoint or two, not to all of them.
    conversations = [request(prompt_bytes, number) for number in range(64)]
    times = []
    for turn in range(repeat):
        asked = conversations[turn % 64]
        if between is not None:
            between()
        elif turn % 128 == 0:
            node.publish()  # or the values would grow old
            node.scheduler.schedule(asked, time.monotonic_ns())
        started = time.thread_time_ns()
        decision = node.scheduler.schedule(asked, time.monotonic_ns())
        times.append(time.thread_time_ns() - started)
        assert isinstance(decision, Decision)
        decision.ticket.finish(Outcome.COMPLETE)
    return statistics.quantiles(times, n=4)[0] / 1000


def reference() -> float:
    """Time of adding two arrays of 16 numbers in us: decisions are made of such steps."""
    left, right = np.zeros(16), np.ones(16)
    times = []
    for _ in range(200):
        started = time.thread_time_ns()
        for _ in range(100):
            np.add(left, right)
        times.append((time.thread_time_ns() - started) / 100)
    return statistics.quantiles(times, n=4)[0] / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=1000)
    repeat = parser.parse_args().repeat
    print(f"reference: one numpy addition {reference():.2f} us")
    print(f"{'endpoints':>9} {'pipeline':>8} {'prompt':>8} {'same us':>8} {'fresh us':>9} {'budget':>7}")
    for count, budget in BUDGET_US.items():
        for name, config in (("default", ""), ("gie", GIE.read_text())):
            for prompt in (100, 8_000, 220_000):
                with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                    node = Node(Path(folder), count, config)
                    timed(node, prompt, 50, node.publish)
                    same = timed(node, prompt, repeat, None)
                    fresh = timed(node, prompt, repeat // 4, node.publish)
                    print(f"{count:>9} {name:>8} {prompt:>8} {same:>8.1f} {fresh:>9.1f} {budget:>7}")
                    node.close()


if __name__ == "__main__":
    main()

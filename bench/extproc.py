"""What the picker itself costs, without an Envoy: CPU per request, per echoed chunk, per open stream, and memory.

A gateway reduced to its HTTP/2 connection drives a real picker process over its Unix socket. Every figure is the
picker's own CPU time, which a busy machine stretches: the yardstick (a fixed loop, timed around each run) says by how
much, and figures are also given divided by it. Run: python -m bench.extproc [--front native|grpcio]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.fleet import Fleet
from support.h2gateway import H2Gateway, chat, cpu_seconds, grpc_frame, headers_only, resident_bytes
from support.processes import processes
from zerohop_picker._pb import extproc_pb2 as pb

#: CPU seconds of `yardstick` on the machine of docs/performance.md when nothing else runs.
QUIET_S = 0.045


def yardstick() -> float:
    began, total = time.thread_time(), 0
    for number in range(1_000_000):
        total += number
    return time.thread_time() - began


class Bench:
    def __init__(self, path: str, pid: int) -> None:
        self.path = path
        self.pid = pid

    def run(self, name: str, frames: list[bytes], replies: int, count: int, concurrency: int) -> None:
        gateway = H2Gateway(self.path)
        gateway.exchange(frames, replies, count=count // 10, concurrency=concurrency)
        slow = yardstick()
        before = cpu_seconds(self.pid)
        took = gateway.exchange(frames, replies, count=count, concurrency=concurrency)
        cpu = (cpu_seconds(self.pid) - before) / count * 1e6
        slow = (slow + yardstick()) / 2 / QUIET_S
        gateway.close()
        print(f"{name:34} {cpu:8.1f} us CPU {cpu / slow:8.1f} us at rest {count / took:9.0f} req/s")

    def chunks(self, count: int) -> None:
        """Response chunks of an SSE answer, one message each, sent in small batches as tokens come."""
        gateway = H2Gateway(self.path)
        frames = chat(2000, response=True)
        ids = [gateway.open(frames) for _ in range(50)]
        while any(gateway.replies(one) < 2 for one in ids):
            gateway.pump()
        head, chunk = pb.ProcessingRequest(), pb.ProcessingRequest()
        for name, value in {":status": "200", "content-type": "text/event-stream"}.items():
            header = head.response_headers.headers.headers.add()
            header.key, header.raw_value = name, value.encode()
        chunk.response_body.body = b'data: {"choices":[{"delta":{"content":" token"}}]}\n\n'
        for one in ids:
            gateway.send(one, grpc_frame(head))
        while any(gateway.replies(one) < 3 for one in ids):
            gateway.pump()
        frame, slow = grpc_frame(chunk), yardstick()
        before, expected = cpu_seconds(self.pid), 3
        for _ in range(count // 50):
            expected += 1
            for one in ids:
                gateway.send(one, frame)
            while any(gateway.replies(one) < expected for one in ids):
                gateway.pump()
        cpu = (cpu_seconds(self.pid) - before) / count * 1e6
        slow = (slow + yardstick()) / 2 / QUIET_S
        gateway.close()
        print(f"{'echoed response chunk':34} {cpu:8.1f} us CPU {cpu / slow:8.1f} us at rest")

    def open_streams(self, count: int) -> None:
        gateway = H2Gateway(self.path)
        frames = chat(2000, response=True)
        for warm in (True, False):
            before = resident_bytes(self.pid)
            ids = [gateway.open(frames) for _ in range(count)]
            while any(gateway.replies(one) < 2 for one in ids):
                gateway.pump()
            grown = resident_bytes(self.pid) - before
            for one in ids:
                gateway.reset(one)
            gateway.flush()
            if not warm:
                print(f"{f'{count} more open streams, again':34} {grown / count / 1024:8.1f} kB each")
            else:
                print(f"{f'{count} open streams':34} {grown / count / 1024:8.1f} kB each")
            time.sleep(0.5)
        gateway.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--front", default="native", choices=("native", "grpcio"))
    parser.add_argument("--endpoints", type=int, default=16)
    parser.add_argument("--requests", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, processes() as run:
        folder = Path(name)
        with Fleet(folder, [f"10.0.0.{index + 1}:8000" for index in range(arguments.endpoints)]):
            picker = run.zerohop(
                "picker", "--shm-dir", folder, "--listen", f"unix:{folder}/p.sock", "--front", arguments.front,
                "--response=observe",
            )  # fmt: skip
            bench = Bench(f"{folder}/p.sock", picker.pid)
            print(f"{'resident memory at start':34} {resident_bytes(picker.pid) / 2**20:8.1f} MB")
            bench.run("headers only, c=64", headers_only(), 1, arguments.requests, 64)
            for size, count in ((2_000, arguments.requests), (8_000, arguments.requests // 2), (220_000, 500)):
                replies = 1 + len(range(0, size, 62_000))
                for concurrency in (1, 64) if size == 2_000 else (16,):
                    name = f"{size // 1000} kB chat, c={concurrency}"
                    bench.run(name, chat(size, response=True), replies, count, concurrency)
            bench.chunks(50_000)
            bench.open_streams(1_000)
            print(f"{'resident memory at the end':34} {resident_bytes(picker.pid) / 2**20:8.1f} MB")


if __name__ == "__main__":
    main()

"""Publish and read at 8, 256 and 1,024 endpoints; a read costs nothing but a look while the sequence stands still."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerohop_snapshot.reader import SnapshotReader
from zerohop_snapshot.writer import SnapshotWriter

SIZES = (8, 256, 1024)


def median_us(call: Callable[[], object], count: int = 2000, before: Callable[[], object] = int) -> float:
    """The median duration of a call, in microseconds; `before` runs before each, out of the measurement."""
    times = []
    for _ in range(count):
        before()
        began = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - began)
    times.sort()
    return times[count // 2] / 1e3


def run() -> list[dict[str, Any]]:
    """One row per size."""
    rows = []
    for size in SIZES:
        with tempfile.TemporaryDirectory(prefix="zerohop-bench-", dir="/dev/shm") as folder:
            writer = SnapshotWriter(Path(folder), endpoint_capacity=size)
            for index in range(size):
                writer.add_endpoint(f"10.0.{index // 256}.{index % 256}:8000")
            writer.publish()
            reader = SnapshotReader(Path(folder), node=False)
            reader.read()
            still = median_us(reader.read, 20_000)
            publish = median_us(writer.publish)
            new = median_us(reader.read, before=writer.publish)
            rows.append(
                {
                    "endpoints": size,
                    "publish_us": round(publish, 1),
                    "read_new_us": round(new, 1),
                    "read_same_us": round(still, 2),
                    "new_per_same": round(new / still),
                }
            )
            writer.close()
    return rows

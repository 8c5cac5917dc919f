"""A live snapshot without an agent: endpoints with loads that a test sets, published as an agent would."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgpack

from zerohop_snapshot import Flag, SnapshotWriter


class Fleet:
    """Endpoints in shared memory; a thread publishes every 10 ms until `stop`."""

    def __init__(self, shm_dir: Path, addresses: Sequence[str], pools: Sequence[Sequence[str]] = ()) -> None:
        self._writer = SnapshotWriter(shm_dir)
        self._lock = threading.Lock()
        self.addresses = list(addresses)
        self._rows: list[int] = []
        cold: dict[str, Any] = {
            "v": 1,
            "node": "test",
            "origins": ["test"],
            "adapters": [],
            "gpus": [],
            "endpoints": {},
        }
        names = sorted({name for of_one in pools for name in of_one})
        cold["pools"] = [{"name": name, "objectives": [], "rewrites": [], "models": []} for name in names]
        for index, address in enumerate(addresses):
            row = self._writer.add_endpoint(address)
            assert row is not None
            self._rows.append(row)
            mine = list(pools[index]) if pools else []
            cold["endpoints"][row] = {
                "address": address, "name": f"server-{index}", "uid": f"uid-{index}", "pools": mine, "labels": {},
                "generation": self._writer.generation(row), "models": ["m"], "engine": "vllm", "role": None, "gpus": [],
            }  # fmt: skip
            self._set(row, "pools", sum(1 << names.index(name) for name in mine))
            self._set(row, "scrape_interval_s", 0.05)
            for column in ("waiting", "running", "kv_cache_usage"):
                self._set(row, column, 0.0)
        self._writer.set_cold(msgpack.packb(cold))
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._publish_once()
        self._thread.start()

    def load(self, index: int, *, waiting: float = 0.0, running: float = 0.0, flags: Flag | None = None) -> None:
        """Set what endpoint `index` reports from now on."""
        with self._lock:
            row = self._rows[index]
            self._set(row, "waiting", waiting)
            self._set(row, "running", running)
            self._set(row, "flags", int(Flag.USED | (flags or 0)))

    def stop(self) -> None:
        self._running.set()
        self._thread.join()
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _set(self, row: int, column: str, value: float) -> None:
        self._writer.endpoints.set(row, column, value)

    def _publish(self) -> None:
        while not self._running.wait(0.01):
            self._publish_once()

    def _publish_once(self) -> None:
        now_ns = time.monotonic_ns()
        with self._lock:
            for row in self._rows:
                for column in ("observed_ns", "progress_ns", "detail_observed_ns"):
                    self._set(row, column, now_ns)
            self._writer.publish(now_ns)

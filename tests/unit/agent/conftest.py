from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from zerohop_agent.endpoints import EndpointSet, EndpointSpec
from zerohop_agent.latches import Bounds
from zerohop_agent.readers import OnFailure, OnSignals
from zerohop_agent.runtime import Runtime
from zerohop_agent.signals import Signals, SourceError
from zerohop_process.address import Address
from zerohop_snapshot.layout import Flag, UnhealthyReason, reason_bytes
from zerohop_snapshot.reader import Snapshot, SnapshotReader
from zerohop_snapshot.writer import SnapshotWriter

MS = 1_000_000
SECOND = 1_000_000_000


def endpoint(address: str = "10.0.0.1:8000", **values: Any) -> EndpointSpec:
    where = Address.parse(address)
    return replace(EndpointSpec(key=address, address=where, name=address), **values)


class ScriptedReader:
    """Reads nothing by itself; the test says what came."""

    def __init__(self, spec: EndpointSpec, on_signals: OnSignals, on_failure: OnFailure) -> None:
        self.spec = spec
        self.engine: str | None = "vllm"
        self.interval_ns = 50 * MS
        self.cancelled = False
        self.relaxed = False
        self.hands: Bench | None = None
        self._on_signals = on_signals
        self._on_failure = on_failure

    def relax(self, *, on: bool) -> None:
        self.relaxed = on

    def is_relaxed(self) -> bool:
        return self.relaxed

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def say(self, observed_ns: int, **values: Any) -> None:
        if self.hands is not None:
            self.hands.now_ns = max(self.hands.now_ns, observed_ns)
        self._on_signals(self.spec, Signals(**values), observed_ns, 2 * MS)

    def fail(self, reason: UnhealthyReason) -> None:
        self._on_failure(self.spec, SourceError(reason, "as scripted"))


@dataclass
class Reading:
    signals: Signals
    observed_ns: int


class ScriptedCells:
    """Engine cells that the test fills."""

    def __init__(self) -> None:
        self.readings: dict[str, Reading] = {}

    def refresh(self, now_ns: int) -> None:
        pass

    def reading(self, address: Address) -> Reading | None:
        return self.readings.get(str(address))


class Bench:
    """A runtime on a real writer, with readers, cells and the clock in the test's hand."""

    def __init__(self, shm_dir: Path, *, capacity: int = 8, **options: Any) -> None:
        self.shm_dir = shm_dir
        self.writer = SnapshotWriter(shm_dir, endpoint_capacity=capacity)
        self.reader = SnapshotReader(shm_dir)
        self.readers: dict[str, ScriptedReader] = {}
        self.every_reader: list[ScriptedReader] = []
        self.cells = ScriptedCells()
        self.now_ns = 0
        options.setdefault("bounds", Bounds())
        self.runtime = Runtime(
            self.writer,
            self._make,
            node="node-1",
            scrape_interval_ns=50 * MS,
            cells=self.cells,
            clock=lambda: self.now_ns,
            **options,
        )

    def _make(self, spec: EndpointSpec, on_signals: OnSignals, on_failure: OnFailure) -> ScriptedReader:
        reader = ScriptedReader(spec, on_signals, on_failure)
        reader.hands = self
        self.readers[spec.key] = reader
        self.every_reader.append(reader)
        return reader

    def apply(self, *specs: EndpointSpec, source: str = "flags", **values: Any) -> None:
        self.runtime.apply(source, EndpointSet(tuple(specs), **values))

    def publish(self, now_ns: int) -> View:
        self.now_ns = now_ns
        self.runtime.prepare(now_ns)
        self.writer.publish(now_ns)
        snapshot = self.reader.read()
        assert snapshot is not None
        return View(snapshot)


class View:
    """One published snapshot, by address."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.cold: dict[str, Any] = msgpack.unpackb(snapshot.cold, strict_map_key=False)

    def row(self, address: str) -> int:
        rows = {facts["address"]: row for row, facts in self.cold["endpoints"].items()}
        row: int = rows[address]
        return row

    def get(self, name: str, address: str = "10.0.0.1:8000") -> Any:
        return self.snapshot.column(name)[self.row(address)]

    def flags(self, address: str = "10.0.0.1:8000") -> set[str]:
        word = Flag(self.get("flags", address))
        return {str(flag.name).lower() for flag in Flag if flag in word and flag is not Flag.USED}

    def reasons(self, address: str = "10.0.0.1:8000") -> tuple[int, int, int, int]:
        return reason_bytes(self.get("reasons", address))

    def adapters(self, address: str = "10.0.0.1:8000", kind: str = "running") -> set[str]:
        word = self.get(f"lora_{kind}_0", address) | self.get(f"lora_{kind}_1", address) << 64
        return {name for slot, name in enumerate(self.cold["adapters"]) if word >> slot & 1}


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**options: Any) -> Bench:
        bench = Bench(tmp_path / "shm", **options)
        made.append(bench)
        return bench

    yield make
    for bench in made:
        bench.reader.close()
        if bench.writer is not None:
            bench.writer.close()


@pytest.fixture
async def bench(make_bench: Callable[..., Bench]) -> Any:
    one = make_bench()
    yield one
    await one.runtime.close()

"""A node's boards, the collector with its real child process over the compiled stand-in, and what it wrote."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.nvml import Boards
from support.waiting import eventually_async
from zerohop_agent.collectors.base import NoData
from zerohop_agent.collectors.gpu.collector import GpuCollector, GpuUnavailable
from zerohop_agent.collectors.gpu.settings import GpuSettings
from zerohop_agent.condition import ConditionSettings
from zerohop_snapshot.layout import GpuFlag

MS = 1_000_000
FAST = GpuSettings(
    interval_ns=50 * MS,
    slow_interval_ns=100 * MS,
    deadline_ns=1500 * MS,
    retry_ns=20 * MS,
    condition=ConditionSettings(heal_after_ns=50 * MS, xid_hold_ns=50 * MS, slowdown_after_ns=50 * MS),
)


class Rows:
    """GPU columns as plain dicts."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}

    def set(self, row: int, name: str, value: float | None) -> None:
        self.rows.setdefault(row, {})[name] = math.nan if value is None else value

    def get(self, row: int, name: str) -> float:
        return self.rows[row][name]

    def clear(self, row: int) -> None:
        self.rows.pop(row)


class View:
    """What a collector writes."""

    def __init__(self) -> None:
        self.gpus = Rows()
        self.boards: list[dict[str, Any]] = []
        self.times_told = 0
        self.conditions: dict[str, Any] = {}

    @property
    def host(self) -> Any:
        raise AssertionError("the GPU collector writes no host values")

    def set_gpus(self, gpus: Sequence[Mapping[str, Any]]) -> None:
        self.boards = [dict(gpu) for gpu in gpus]
        self.times_told += 1

    def set_gpu_conditions(self, conditions: Mapping[str, Any]) -> None:
        self.conditions = dict(conditions)


class Node:
    """Boards, a collector and what it wrote."""

    def __init__(self, boards: Boards, settings: GpuSettings, **arguments: Any) -> None:
        self.boards = boards
        self.view = View()
        self.collector = GpuCollector(settings, **arguments)
        self.error = ""

    async def update(self) -> None:
        try:
            await self.collector.update(self.view)
            self.error = ""
        except (NoData, GpuUnavailable) as error:
            self.error = f"{type(error).__name__}: {error}"

    async def until(self, condition: Any, what: str = "") -> None:
        async def holds() -> bool:
            await self.update()
            return bool(condition())

        await eventually_async(holds, what=f"{what} (last error: {self.error!r})")

    async def read(self) -> None:
        await self.until(
            lambda: not self.error and self.view.gpus.rows and self.row(0)["observed_ns"], "a first reading"
        )

    def row(self, number: int) -> dict[str, float]:
        return self.view.gpus.rows[number]

    def of(self, uuid: str) -> dict[str, float]:
        return self.row([board["uuid"] for board in self.view.boards].index(uuid))

    def flags(self, number: int) -> GpuFlag:
        return GpuFlag(int(self.row(number)["flags"]))

    @property
    def child(self) -> int:
        child = self.collector._process._child
        assert child is not None
        return child.pid

    def child_cpu_s(self) -> float:
        fields = Path(f"/proc/{self.child}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def watching(boards: Boards, settings: GpuSettings = FAST, **arguments: Any) -> AsyncIterator[Node]:
    node = Node(boards, settings, **arguments)
    try:
        yield node
    finally:
        await node.collector.close()

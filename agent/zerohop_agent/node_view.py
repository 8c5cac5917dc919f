"""What collectors may write: GPU rows, the host's record, and which boards there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from zerohop_agent.rows import Condition, EndpointRow
from zerohop_snapshot.layout import DrainReason, GpuFlag, SlowdownReason
from zerohop_snapshot.writer import SnapshotWriter, Table


class BoardCondition(Protocol):
    """What a board does to the endpoints that use it, as `condition.assess` says it."""

    @property
    def drain_reason(self) -> DrainReason | None:
        """Why they take no new requests; None or NONE: they do."""

    @property
    def slowdown(self) -> float | None:
        """Full speed over the speed now, >= 1; None: unknown."""

    @property
    def slowdown_reason(self) -> SlowdownReason:
        """What slows it."""


class HostRecord:
    """The one row of the host, by name."""

    __slots__ = ("_table",)

    def __init__(self, table: Table) -> None:
        self._table = table

    def set(self, name: str, value: float | None) -> None:
        """Write one value; None is unknown."""
        self._table.set(0, name, value)

    def get(self, name: str) -> float:
        """The value last set."""
        return self._table.get(0, name)


class NodeView:
    """Implements `collectors.base.SnapshotView`, and latches what the GPUs do to endpoints."""

    def __init__(self, writer: SnapshotWriter, changed: Callable[[], None]) -> None:
        self.gpus = writer.gpus
        self.host = HostRecord(writer.host)
        self._changed = changed
        #: Entry i describes GPU row i.
        self.boards: tuple[Mapping[str, Any], ...] = ()
        self.conditions: Mapping[str, BoardCondition] = {}
        #: Moves when `boards` changes.
        self.version = 0
        #: Moves with every reading of the GPUs.
        self.readings = 0

    def set_gpus(self, gpus: Sequence[Mapping[str, Any]]) -> None:
        """Say which boards there are, row by row; rows past the end become unknown."""
        boards = tuple(gpus)[: self.gpus.capacity]
        self.readings += 1
        if boards != self.boards:
            for row in range(len(boards), len(self.boards)):
                self.gpus.clear(row)
            self.boards = boards
            self.version += 1
        self._changed()

    def set_gpu_conditions(self, conditions: Mapping[str, BoardCondition]) -> None:
        """Say what the boards do to the endpoints that use them."""
        self.readings += 1
        self.conditions = dict(conditions)
        self._changed()

    def apply(self, row: EndpointRow, table: Table) -> None:
        """Write what the endpoint's GPUs say of it: worst condition, mean utilisation, largest memory share."""
        uuids = set(row.spec.gpus)
        row.condition = worst([self.conditions[uuid] for uuid in row.spec.gpus if uuid in self.conditions])
        table.set(row.row, "slowdown", row.condition.slowdown)
        used = [index for index, board in enumerate(self.boards) if board.get("uuid") in uuids] if uuids else []
        used = [index for index in used if int(self.gpus.get(index, "flags")) & GpuFlag.USED]
        utilization = _known(self.gpus.get(index, "utilization") for index in used)
        memory = _known(
            self.gpus.get(index, "memory_used_bytes") / (self.gpus.get(index, "memory_total_bytes") or float("nan"))
            for index in used
        )
        table.set(row.row, "gpu_utilization", sum(utilization) / len(utilization) if utilization else None)
        table.set(row.row, "gpu_memory", max(memory, default=None))


def worst(conditions: Sequence[BoardCondition]) -> Condition:
    """One condition for an endpoint on several boards: any drain drains it, and the slowest board sets its pace."""
    found = Condition()
    for condition in conditions:
        if condition.drain_reason:
            found.drain_reason = found.drain_reason or condition.drain_reason
        if condition.slowdown is not None and not condition.slowdown <= found.slowdown:
            found.slowdown = condition.slowdown
            found.slowdown_reason = condition.slowdown_reason
    return found


def _known(values: Any) -> list[float]:
    return [value for value in values if value == value]

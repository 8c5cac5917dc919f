"""The GPU collector: what the NVML child says, written into the snapshot, and what follows for the endpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from zerohop_agent.collectors.base import NoData, SnapshotView
from zerohop_agent.collectors.gpu.process import ChildState, NvmlProcess
from zerohop_agent.collectors.gpu.reading import Board, GpuReading
from zerohop_agent.collectors.gpu.settings import GpuSettings
from zerohop_agent.condition import (
    HEALTHY,
    HW_SLOWDOWN,
    HW_THERMAL,
    POWER_BRAKE,
    SW_THERMAL,
    GpuCondition,
    GpuHealth,
    XidSeen,
    assess,
    effective,
)
from zerohop_agent.xids import xid
from zerohop_process.log import event, get
from zerohop_snapshot.layout import GPU_COLUMNS, GpuFlag

logger = get("agent.gpu")

#: How often messages of the child are looked at and conditions are assessed; an XID reaches routing within this.
_CHECK_NS = 100_000_000
_ABSENT_CHECK_NS = 1_000_000_000
#: Conditions change with time alone, too: holds run out.
_ASSESS_NS = 500_000_000
_XIDS_KEPT = 32

#: Columns that a reading has a value for under the same name.
_VALUES = tuple(column.name for column in GPU_COLUMNS if column.code == "d")
_THROTTLED = SW_THERMAL | HW_THERMAL | POWER_BRAKE | HW_SLOWDOWN


class GpuUnavailable(Exception):
    """NVML worked or should work, and does not now; the message says how."""


class GpuRow:
    """One board over time: it keeps its row, its XIDs and its place in the cold map also while it is lost."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.reading: GpuReading | None = None
        self.missing = False
        self.xids: list[XidSeen] = []
        self.xid_count = 0
        self.returned_ns = 0

    @property
    def lost(self) -> bool:
        """True while the driver does not reach the board."""
        return self.missing or (self.reading is not None and self.reading.lost)

    def health(self, now_ns: int) -> GpuHealth | None:
        """For `assess`; None when nothing is known now."""
        reading = self.reading or (GpuReading(observed_ns=now_ns) if self.missing else None)
        if reading is None:
            return None
        return GpuHealth(
            observed_ns=reading.observed_ns,
            slow_observed_ns=reading.slow_observed_ns,
            lost=self.lost,
            reset_required=reading.reset_required,
            row_remap_failed=reading.remap_failed,
            ecc_uncorrectable=reading.ecc_uncorrected_total,
            recovery_action=reading.recovery_action,
            xids=tuple(self.xids),
            returned_ns=self.returned_ns,
            clock_event_reasons=reading.clock_event_reasons,
            sm_clock_hertz=reading.sm_clock_hertz,
            sm_clock_max_hertz=reading.sm_clock_max_hertz,
        )

    def flags(self, condition: GpuCondition) -> int:
        """The `flags` column. `condition` is the board's own, also when nothing of it reaches the endpoints."""
        reading = self.reading or GpuReading()
        flags = GpuFlag.USED
        for bit, on in (
            (GpuFlag.LOST, self.lost),
            (GpuFlag.MIG, self.board.mig is not None),
            (GpuFlag.UNIFIED_MEMORY, reading.unified_memory),
            (GpuFlag.REMAP_PENDING, reading.remap_pending),
            (GpuFlag.REMAP_FAILED, reading.remap_failed),
            (GpuFlag.RETIRED_PENDING, reading.retired_pending),
            (GpuFlag.RESET_REQUIRED, reading.reset_required or reading.recovery_action),
            (GpuFlag.THROTTLED, (reading.clock_event_reasons or 0) & _THROTTLED),
            (GpuFlag.DRAIN, condition.drain_reason),
            (GpuFlag.SLOWED, condition.slowdown_reason),
        ):
            if on:
                flags |= bit
        return int(flags)


class GpuCollector:
    """Writes a row per board, then one per MIG instance, as far as the table goes.

    `on_fatal` is called with a sentence when the container must be made anew (see `GpuSettings.exit_after_unknown`).
    Must be updated on a running event loop.
    """

    name = "gpu"

    def __init__(
        self,
        settings: GpuSettings | None = None,
        *,
        capacity: int = 16,
        on_fatal: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings or GpuSettings()
        self._capacity = capacity
        self._on_fatal = on_fatal
        self._process = NvmlProcess(self.settings, self._hear)
        self._rows: list[GpuRow] = []
        self._boards_changed = False
        self._told: list[dict[str, Any]] = []
        self._session_broken = False
        self._left_over = 0
        self._looked_ns = 0
        self._news = True
        self._state = self._process.state
        self._assessed_ns = 0
        self.conditions: dict[str, GpuCondition] = {}
        self.driver_version = ""

    @property
    def interval_ns(self) -> int:
        """Short while boards are watched; long where there is nothing to watch."""
        return _ABSENT_CHECK_NS if self._process.state in (ChildState.ABSENT, ChildState.RELEASED) else _CHECK_NS

    @property
    def boards(self) -> list[dict[str, Any]]:
        """The boards and MIG instances known now, as in the snapshot's cold map."""
        return [row.board.as_map() for row in self._rows]

    # -- from the child ------------------------------------------------------------------------------------------------

    def _hear(self, message: Mapping[str, Any]) -> None:
        self._news = True
        kind = message.get("t")
        if kind == "boards":
            self._take_boards([Board(**board) for board in message["boards"]], str(message["driver"]))
        elif kind == "read":
            for uuid, values in message["gpus"].items():
                self._take_reading(uuid, GpuReading.from_map(values))
        elif kind == "xid":
            self._take_xid(str(message["uuid"]), XidSeen(int(message["code"]), int(message["ns"])))
        elif kind == "end" and message.get("state") != "changed":
            self._session_broken = True

    def _take_boards(self, boards: list[Board], driver: str) -> None:
        """Match by UUID: a board that is not there any more is lost, an instance that is not there is gone."""
        found = {board.uuid: board for board in boards}
        known = {row.board.uuid: row for row in self._rows}
        now_ns = time.monotonic_ns()
        for row in self._rows:
            board = found.get(row.board.uuid)
            if board is None:
                row.missing, row.reading = True, None
                continue
            if row.missing or self._session_broken:
                row.returned_ns = now_ns
            row.missing, row.board = False, board
        rows = [row for row in self._rows if not (row.missing and row.board.is_instance)]
        rows += [GpuRow(board) for board in boards if board.uuid not in known]
        rows.sort(key=lambda row: row.board.is_instance)  # stable: boards first, each in the order of appearance
        self._left_over = max(0, len(rows) - self._capacity)
        if self._left_over:
            event(logger, "warning", "more GPUs than rows", gpus=len(rows), rows=self._capacity)
        self._rows = rows
        self._session_broken = False
        self._boards_changed = True
        if driver != self.driver_version:
            self.driver_version = driver
            event(logger, "info", "GPUs found", boards=len(boards), driver=driver)

    def _take_reading(self, uuid: str, reading: GpuReading) -> None:
        row = next((row for row in self._rows if row.board.uuid == uuid), None)
        if row is None:
            return
        was_lost = row.lost
        row.reading = reading
        row.missing = False
        if was_lost and not reading.lost:
            row.returned_ns = reading.observed_ns
            event(logger, "info", "GPU is back", gpu=uuid)
        elif reading.lost and not was_lost:
            event(logger, "warning", "GPU is lost", gpu=uuid)

    def _take_xid(self, uuid: str, seen: XidSeen) -> None:
        row = next((row for row in self._rows if row.board.uuid == uuid), None)
        if row is None:
            return
        row.xid_count += 1
        row.xids = [*row.xids[1 - _XIDS_KEPT :], seen]
        known = xid(seen.code)
        event(logger, "warning", "XID", gpu=uuid, code=seen.code, kind=known.kind.value, meaning=known.meaning)

    # -- to the snapshot -----------------------------------------------------------------------------------------------

    async def update(self, view: SnapshotView) -> None:
        """Take over what the child said since the last time. Raises: NoData, GpuUnavailable."""
        now_ns = time.monotonic_ns()
        self._look_for_missing(now_ns)
        self._process.check(now_ns)
        readable = self._process.state == ChildState.RUNNING
        if self._news or self._process.state != self._state or now_ns - self._assessed_ns >= _ASSESS_NS:
            self._news, self._state, self._assessed_ns = False, self._process.state, now_ns
            self._write(view, now_ns, readable=readable)
        self._report(readable=readable)

    def _write(self, view: SnapshotView, now_ns: int, *, readable: bool) -> None:
        if not readable:
            for row in self._rows:
                row.reading = None
        if self._boards_changed:
            self._boards_changed = False
            boards = self.boards[: self._capacity]
            if boards != self._told:  # a session that finds the same boards must not make readers decode names again
                self._told = boards
                view.set_gpus(boards)
        self._assess(view, now_ns)
        for number, row in enumerate(self._rows[: self._capacity]):
            _write_row(view, number, row, self.conditions.get(row.board.parent_uuid, HEALTHY))

    def _look_for_missing(self, now_ns: int) -> None:
        """A board that fell off the bus is seen again by a new NVML session only: begin one now and then."""
        if not any(row.missing for row in self._rows):
            self._looked_ns = now_ns
        elif now_ns - self._looked_ns >= self.settings.slow_interval_ns:
            self._looked_ns = now_ns
            self._process.start_anew(now_ns)

    def _assess(self, view: SnapshotView, now_ns: int) -> None:
        healths = {
            row.board.uuid: health
            for row in self._rows
            if not row.board.is_instance and (health := row.health(now_ns)) is not None
        }
        before = self.conditions
        self.conditions = assess(healths, self.settings.condition, now_ns, before)
        for uuid, condition in self.conditions.items():
            _log_change(uuid, before.get(uuid), condition, observe_only=self.settings.condition.observe_only)
        told = effective(self.conditions, self.settings.condition)
        for row in self._rows:  # an instance shares the fate of its board
            if row.board.is_instance and row.board.parent_uuid in told:
                told[row.board.uuid] = told[row.board.parent_uuid]
        view.set_gpu_conditions(told)

    def _report(self, *, readable: bool) -> None:
        process = self._process
        limit = self.settings.exit_after_unknown
        if limit and process.unknown_failures >= limit and self._on_fatal is not None:
            self._on_fatal(
                f"NVML failed to start {process.unknown_failures} times in a row (Unknown Error): the container has"
                " most likely lost its access to the GPU devices and must be made anew"
            )
        if readable:
            return
        if process.state in (ChildState.ABSENT, ChildState.STARTING, ChildState.RELEASED):
            raise NoData(process.text)
        raise GpuUnavailable(process.text)

    async def close(self) -> None:
        """End the child."""
        await self._process.close()


def _write_row(view: SnapshotView, number: int, row: GpuRow, condition: GpuCondition) -> None:
    reading = row.reading or GpuReading()
    gpus = view.gpus
    for name in _VALUES:
        value = getattr(reading, name)
        gpus.set(number, name, math.nan if value is None else value)
    gpus.set(number, "clock_event_reasons", reading.clock_event_reasons or 0)
    gpus.set(number, "xid_last", row.xids[-1].code if row.xids else 0)
    gpus.set(number, "xid_count", row.xid_count)
    gpus.set(number, "flags", row.flags(condition))
    gpus.set(number, "observed_ns", reading.observed_ns)
    gpus.set(number, "slow_observed_ns", reading.slow_observed_ns)


def _log_change(uuid: str, before: GpuCondition | None, now: GpuCondition, *, observe_only: bool) -> None:
    if now.drain_reason != (before.drain_reason if before is not None else None):
        if now.drain_reason is not None:
            text = "GPU would drain its endpoints" if observe_only else "GPU drains its endpoints"
            event(logger, "warning", text, gpu=uuid, reason=now.drain_reason.name, detail=now.detail)
        else:
            event(logger, "info", "GPU takes requests again", gpu=uuid)
    if now.slowdown_reason != (before.slowdown_reason if before is not None else now.slowdown_reason.NONE):
        event(logger, "info", "GPU speed", gpu=uuid, slowdown=now.slowdown, reason=now.slowdown_reason.name)

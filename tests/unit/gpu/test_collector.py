"""The collector with its real child process over the compiled stand-in: boards, versions of the driver, and faults."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.nvml import Boards, uuid_of
from support.waiting import eventually_async
from zerohop_agent.collectors.base import NoData
from zerohop_agent.collectors.gpu.collector import GpuCollector, GpuUnavailable
from zerohop_agent.collectors.gpu.settings import GpuSettings
from zerohop_agent.condition import ConditionSettings
from zerohop_snapshot.layout import DrainReason, GpuFlag

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


@pytest.fixture
def boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Boards:
    control = Boards(tmp_path, count=2)
    for name, value in control.environment().items():
        monkeypatch.setenv(name, value)
    return control


@asynccontextmanager
async def watching(boards: Boards, settings: GpuSettings = FAST, **arguments: Any) -> AsyncIterator[Node]:
    node = Node(boards, settings, **arguments)
    try:
        yield node
    finally:
        await node.collector.close()


async def test_eight_healthy_boards(boards: Boards) -> None:
    boards.driver(boards=8)
    boards.set(5, util=87, mem_util=31, mem_used_mib=70_000, power_mw=612_500, temp=71, mem_temp=83, sm_mhz=1755)
    boards.set(5, ecc_corrected=3, remap_corr=1, nvlinks_down=2, nvlink_rx_kib=5, pcie_replay=9, energy_mj=2500)
    boards.set(5, processes=2, reasons=4)
    async with watching(boards) as node:
        await node.read()
        assert [board["uuid"] for board in node.view.boards] == [uuid_of(board) for board in range(8)]
        assert node.view.boards[5]["bus_id"] == "00000000:15:00.0"
        row = node.row(5)
    expected = {
        "utilization": 0.87,
        "memory_utilization": 0.31,
        "memory_used_bytes": 70_000 << 20,
        "memory_total_bytes": 81_559 << 20,
        "memory_reserved_bytes": 551 << 20,
        "power_watts": 612.5,
        "power_limit_watts": 700,
        "temperature_celsius": 71,
        "memory_temperature_celsius": 83,
        "sm_clock_hertz": 1755e6,
        "sm_clock_max_hertz": 1980e6,
        "memory_clock_hertz": 2619e6,
        "memory_clock_max_hertz": 2619e6,
        "ecc_corrected_total": 3,
        "ecc_uncorrected_total": 0,
        "remapped_rows_correctable": 1,
        "remapped_rows_uncorrectable": 0,
        "nvlink_up": 16,
        "nvlink_down": 2,
        "nvlink_rx_bytes": 5 * 1024,
        "pcie_replay_total": 9,
        "energy_joules": 2.5,
        "processes": 2,
        "clock_event_reasons": 4,
        "flags": GpuFlag.USED,
        "xid_last": 0,
        "xid_count": 0,
    }
    assert {name: row[name] for name in expected} == expected
    unknown = {name for name, value in row.items() if math.isnan(value)}
    assert unknown == {"retired_pages", "nvlink_tx_bytes"}


async def test_an_older_driver_is_asked_by_its_own_names(boards: Boards) -> None:
    boards.missing("nvmlDeviceGetTemperatureV", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons")
    boards.set(0, temp=55, mem_used_mib=10, reasons=0x40, sm_mhz=990)
    async with watching(boards) as node:
        await node.read()
        row = node.row(0)
        assert row["temperature_celsius"] == 55
        assert row["memory_used_bytes"] == 10 << 20
        assert math.isnan(row["memory_reserved_bytes"])
        assert row["clock_event_reasons"] == 0x40
        await node.until(lambda: node.view.conditions[uuid_of(0)].slowdown == pytest.approx(2.0))
        assert GpuFlag.SLOWED in node.flags(0)


async def test_pages_were_retired_before_rows_were_remapped(boards: Boards) -> None:
    boards.set("*", no_GetRemappedRows=1, retired=3, retired_pending=1)
    async with watching(boards) as node:
        await node.read()
        assert node.row(0)["retired_pages"] == 3
        assert math.isnan(node.row(0)["remapped_rows_correctable"])
        assert GpuFlag.RETIRED_PENDING in node.flags(0)


async def test_what_a_board_does_not_support_is_unknown_and_asked_once(boards: Boards) -> None:
    names = ("GetPowerUsage", "GetEnforcedPowerLimit", "GetTotalEccErrors", "GetNvLinkState", "GetUtilizationRates")
    boards.set(0, **{f"no_{name}": 1 for name in names}, no_GetFieldValues=1)
    async with watching(boards) as node:
        await node.read()
        row = node.row(0)
        for name in ("power_watts", "power_limit_watts", "ecc_corrected_total", "nvlink_up", "utilization"):
            assert math.isnan(row[name]), name
        assert row["temperature_celsius"] == 35
        assert node.row(1)["power_watts"] == 70, "another board is asked for itself"
        assert node.view.conditions[uuid_of(0)].drain_reason is None
        # A driver that would answer now is not asked again in this session: the refusal was kept.
        boards.set(0, no_GetPowerUsage=0, temp=36)
        await node.until(lambda: node.row(0)["temperature_celsius"] == 36)
        assert math.isnan(node.row(0)["power_watts"])


async def test_blank_values_are_unknown(boards: Boards) -> None:
    boards.set(0, sentinel=1)
    async with watching(boards) as node:
        await node.read()
        for name in ("utilization", "memory_used_bytes", "memory_total_bytes", "power_watts"):
            assert math.isnan(node.row(0)[name]), name
        assert GpuFlag.UNIFIED_MEMORY not in node.flags(0)


@pytest.mark.parametrize("kind", [1, 2])
async def test_boards_that_share_the_hosts_memory_say_so(boards: Boards, kind: int) -> None:
    boards.set(0, unified=kind)
    async with watching(boards) as node:
        await node.read()
        assert GpuFlag.UNIFIED_MEMORY in node.flags(0)
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        assert node.row(0)["memory_total_bytes"] == pytest.approx(total, rel=0.01)
        assert 0 < node.row(0)["memory_used_bytes"] < total
        assert GpuFlag.UNIFIED_MEMORY not in node.flags(1)


async def test_mig_instances_have_rows_of_their_own_and_share_the_fate_of_their_board(boards: Boards) -> None:
    boards.set(1, mig=2, mem_used_mib=7_000, util=50)
    async with watching(boards) as node:
        await node.read()
        assert [board["uuid"] for board in node.view.boards] == [uuid_of(0), uuid_of(1), uuid_of(1, 1), uuid_of(1, 2)]
        assert node.view.boards[1]["mig"] == {"mode": "enabled"}
        assert node.view.boards[2]["mig"] == {"parent": uuid_of(1), "gi_id": 7, "mig_profile": "1g.10gb"}
        assert math.isnan(node.row(1)["utilization"]), "not told while MIG is on; 0 would mislead"
        assert node.of(uuid_of(1, 2))["memory_used_bytes"] == pytest.approx(1_000 << 20, rel=0.01)
        assert GpuFlag.MIG in node.flags(1)
        boards.set(1, ecc_uncorrected=1)
        await node.until(lambda: node.view.conditions[uuid_of(1, 2)].drain_reason is DrainReason.ECC_UNCORRECTABLE)
        assert node.view.conditions[uuid_of(0)].drain_reason is None


async def test_mig_set_anew_is_followed(boards: Boards) -> None:
    boards.set(0, mig=0)
    async with watching(boards) as node:
        await node.read()
        boards.set(0, mig=3)
        await node.until(lambda: len(node.view.boards) == 5)
        boards.set(0, mig=1)
        await node.until(lambda: len(node.view.boards) == 3)
        boards.set(0, mig=0)
        await node.until(lambda: len(node.view.boards) == 2)
        await node.until(lambda: node.row(0)["utilization"] == 0)


async def test_more_boards_than_rows_are_cut_and_instances_go_first(boards: Boards) -> None:
    boards.set(0, mig=4)
    async with watching(boards, capacity=3) as node:
        await node.read()
        assert [board["uuid"] for board in node.view.boards] == [uuid_of(0), uuid_of(1), uuid_of(0, 1)]


async def test_a_board_that_must_be_reset_says_so_and_the_rest_goes_on(boards: Boards) -> None:
    async with watching(boards) as node:
        await node.read()
        boards.set(0, reset_required=1)
        await node.until(lambda: GpuFlag.RESET_REQUIRED in node.flags(0))
        assert node.view.conditions[uuid_of(0)].drain_reason is DrainReason.GPU_LOST
        assert node.row(1)["utilization"] == 0
        boards.set(0, reset_required=0)
        await node.until(lambda: node.view.conditions[uuid_of(0)].drain_reason is None)


async def test_rows_that_wait_for_a_reset_are_flagged_and_drain_nothing(boards: Boards) -> None:
    boards.set(0, remap_pending=1)
    async with watching(boards) as node:
        await node.read()
        assert GpuFlag.REMAP_PENDING in node.flags(0)
        assert node.view.conditions[uuid_of(0)].drain_reason is None


async def test_a_storm_of_xids_is_counted_and_costs_no_core(boards: Boards) -> None:
    async with watching(boards) as node:
        await node.read()
        for number in range(40):
            boards.xid(0, 31)
            await node.until(lambda number=number: node.row(0)["xid_count"] == number + 1)
        assert node.child_cpu_s() < 3.0
        assert node.view.conditions[uuid_of(0)].drain_reason is None


async def test_an_xid_is_followed_by_a_close_look(boards: Boards) -> None:
    async with watching(boards, replace(FAST, slow_interval_ns=3_600_000 * MS)) as node:
        await node.read()
        boards.set(0, ecc_corrected=5)
        boards.xid(0, 63)
        await node.until(lambda: node.row(0)["ecc_corrected_total"] == 5)


async def test_a_lost_board_whose_events_fail_at_once_makes_no_busy_loop(boards: Boards) -> None:
    async with watching(boards, replace(FAST, slow_interval_ns=3_600_000 * MS)) as node:
        await node.read()
        boards.set(1, lost=1)
        await node.until(lambda: GpuFlag.LOST in node.flags(1))
        before, began = boards.event_waits, time.monotonic()
        await node.until(lambda: time.monotonic() - began > 0.8)
        assert boards.event_waits - before <= 8


async def test_a_board_without_events_is_watched_all_the_same(boards: Boards) -> None:
    boards.set("*", no_GetSupportedEventTypes=1)
    async with watching(boards) as node:
        await node.read()
        boards.set(1, lost=1)
        await node.until(lambda: GpuFlag.LOST in node.flags(1))


async def test_observing_only_is_seen_and_drains_nothing(boards: Boards) -> None:
    settings = replace(FAST, condition=replace(FAST.condition, observe_only=True))
    async with watching(boards, settings) as node:
        await node.read()
        boards.set(0, lost=1)
        await node.until(lambda: GpuFlag.LOST in node.flags(0))
        assert node.view.conditions == {}
        assert GpuFlag.DRAIN in node.flags(0), "what would be done is exported"
        assert GpuFlag.DRAIN not in node.flags(1)
        assert node.collector.conditions[uuid_of(0)].drain_reason is DrainReason.GPU_LOST


async def test_a_hang_is_given_up_and_its_child_replaced(boards: Boards) -> None:
    async with watching(boards) as node:
        await node.read()
        first = node.child
        boards.hang("nvmlDeviceGetUtilizationRates")
        await node.until(lambda: "no answer from the driver" in node.error)
        assert math.isnan(node.row(0)["utilization"])
        assert node.row(0)["observed_ns"] == 0
        assert GpuFlag.USED in node.flags(0), "the board is still known"
        boards.hang()
        await node.read()
        assert node.child != first


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (9, "NoData: the NVIDIA driver is not loaded"),
        (18, "GpuUnavailable: the driver was replaced under its library; pods with the old one must be made anew"),
        (999, "GpuUnavailable: NVML: Unknown Error; a container may have lost its access to the devices"),
    ],
)
async def test_a_driver_that_does_not_start_is_tried_again(boards: Boards, code: int, error: str) -> None:
    boards.driver(init=code)
    async with watching(boards) as node:
        await node.until(lambda: node.error == error)
        boards.driver(init=0)
        await node.read()


async def test_no_library_is_no_data_and_no_work(
    boards: Boards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    async with watching(boards) as node:
        await node.until(lambda: node.error == "NoData: no NVML library (libnvidia-ml.so.1)")
        assert node.collector.interval_ns >= 1_000_000_000
        assert node.view.boards == []
        await node.until(lambda: node.collector._process._child is None, "the child has ended")
        for _ in range(20):
            await node.update()
        assert node.collector._process.starts == 1


async def test_an_old_pynvml_package_is_refused(
    boards: Boards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "pynvml"
    package.mkdir(parents=True)
    import pynvml

    shutil.copy(pynvml.__file__, package / "__init__.py")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    async with watching(boards) as node:
        await node.until(lambda: "old 'pynvml' package" in node.error)


async def test_after_enough_unknown_errors_the_agent_is_asked_to_end(boards: Boards) -> None:
    boards.driver(init=999)
    said: list[str] = []
    async with watching(boards, replace(FAST, exit_after_unknown=3), on_fatal=said.append) as node:
        await node.until(lambda: said)
        assert "lost its access" in said[0]
        assert node.collector._process.unknown_failures == 3


async def test_access_lost_while_running_is_noticed(boards: Boards) -> None:
    async with watching(boards) as node:
        await node.read()
        boards.set("*", unknown=1)
        boards.driver(init=999)
        await node.until(lambda: "Unknown Error" in node.error)
        assert all(condition.drain_reason is None for condition in node.view.conditions.values())


async def test_a_release_gives_every_handle_back(boards: Boards, tmp_path: Path) -> None:
    release = tmp_path / "release"
    async with watching(boards, replace(FAST, release_file=release)) as node:
        await node.read()
        child = node.child
        release.touch()
        await node.until(lambda: "released" in node.error)
        await node.until(lambda: not Path(f"/proc/{child}").exists(), "the child has ended")
        assert math.isnan(node.row(0)["utilization"])
        release.unlink()
        await node.read()


async def test_a_child_that_is_killed_is_replaced(boards: Boards) -> None:
    async with watching(boards) as node:
        await node.read()
        os.kill(node.child, signal.SIGKILL)
        await node.until(lambda: "ended without a word" in node.error)
        await node.read()
        assert node.view.times_told == 1, "the boards are the same"


async def test_an_agent_that_was_held_up_itself_blames_nobody(boards: Boards) -> None:
    async with watching(boards) as node:
        await node.read()
        child = node.child
        time.sleep(2 * FAST.deadline_ns / 1e9)  # noqa: ASYNC251 - the event loop stands still, as under a debugger
        await node.update()
        assert node.error == ""
        assert node.child == child


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


async def test_hung_children_do_not_pile_up(boards: Boards) -> None:
    boards.hang("nvmlInitWithFlags")
    settings = replace(FAST, start_deadline_ns=50 * MS)
    stuck = [_sleeper() for _ in range(3)]  # children that no signal has ended yet
    try:
        async with watching(boards, settings) as node:
            process = node.collector._process
            process._abandoned = list(stuck)
            for _ in range(20):
                await node.update()
            assert process.starts == 0
            assert process.left_behind == 3
            for child in stuck:
                child.kill()
            await node.until(lambda: process.starts > 0)
    finally:
        for child in stuck:
            child.kill()
            child.wait()

"""What is read of each board and of its MIG instances, by any version of the driver, and what follows from it."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace

import pytest

from support.nvml import Boards, uuid_of
from unit.gpu.node import FAST, MS, watching
from zerohop_snapshot.layout import DrainReason, GpuFlag


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

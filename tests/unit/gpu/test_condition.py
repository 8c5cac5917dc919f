"""What a GPU's state does to routing: every reason, its hysteresis, and the switch that only observes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from zerohop_agent.condition import (
    HW_SLOWDOWN,
    HW_THERMAL,
    IDLE,
    POWER_BRAKE,
    SW_POWER_CAP,
    SW_THERMAL,
    ConditionSettings,
    GpuCondition,
    GpuHealth,
    XidSeen,
    assess,
    effective,
)
from zerohop_agent.xids import XIDS, XidKind, xid
from zerohop_snapshot.layout import DrainReason, SlowdownReason

S = 1_000_000_000
SETTINGS = ConditionSettings()
WELL = GpuHealth(0, clock_event_reasons=0, sm_clock_hertz=1.98e9, sm_clock_max_hertz=1.98e9)


class Gpu:
    """One board over time: `at` assesses it at a second and returns the condition."""

    def __init__(self, settings: ConditionSettings = SETTINGS) -> None:
        self.settings = settings
        self.conditions: dict[str, GpuCondition] = {}

    def at(self, second: float, health: GpuHealth = WELL) -> GpuCondition:
        self.conditions = assess({"g": health}, self.settings, round(second * S), self.conditions)
        return self.conditions["g"]


def seen(code: int, second: float) -> GpuHealth:
    return replace(WELL, xids=(XidSeen(code, round(second * S)),))


def test_a_board_that_is_well_takes_requests_at_full_speed() -> None:
    condition = Gpu().at(1)
    assert condition.drain_reason is None
    assert condition.slowdown == 1.0


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (replace(WELL, lost=True), DrainReason.GPU_LOST),
        (replace(WELL, reset_required=True), DrainReason.GPU_LOST),
        (replace(WELL, row_remap_failed=True), DrainReason.ROW_REMAP_FAILURE),
        (replace(WELL, ecc_uncorrectable=1.0), DrainReason.ECC_UNCORRECTABLE),
    ],
)
def test_trouble_drains_at_once_and_for_a_while_after_it_is_over(trouble: GpuHealth, reason: DrainReason) -> None:
    gpu = Gpu()
    assert gpu.at(10, trouble).drain_reason is reason
    assert gpu.at(20, trouble).drain_reason is reason
    assert gpu.at(24.9).drain_reason is reason
    assert gpu.at(25).drain_reason is None


def test_trouble_that_comes_back_starts_the_wait_anew() -> None:
    gpu = Gpu()
    lost = replace(WELL, lost=True)
    gpu.at(10, lost)
    gpu.at(14)
    gpu.at(14.5, lost)
    assert gpu.at(18).drain_reason is DrainReason.GPU_LOST


def test_each_reason_can_be_switched_off() -> None:
    off = ConditionSettings(drain_lost=False, drain_row_remap_failure=False, drain_xid=False, ecc_uncorrectable=0)
    everything = replace(
        WELL, lost=True, row_remap_failed=True, ecc_uncorrectable=9.0, xids=(XidSeen(79, S),), recovery_action=1
    )
    assert Gpu(off).at(1, everything).drain_reason is None


def test_the_bound_of_uncorrectable_errors_is_configurable() -> None:
    gpu = Gpu(ConditionSettings(ecc_uncorrectable=3))
    assert gpu.at(1, replace(WELL, ecc_uncorrectable=2.0)).drain_reason is None
    assert gpu.at(2, replace(WELL, ecc_uncorrectable=3.0)).drain_reason is DrainReason.ECC_UNCORRECTABLE


def test_a_transient_xid_drains_until_the_board_has_been_quiet() -> None:
    gpu = Gpu()
    assert gpu.at(100, seen(94, 100)).drain_reason is DrainReason.XID
    assert gpu.at(159.9, seen(94, 100)).drain_reason is DrainReason.XID
    assert gpu.at(160, seen(94, 100)).drain_reason is None


def test_an_xid_that_asks_for_a_reset_holds_until_there_was_one() -> None:
    gpu = Gpu()
    assert gpu.at(100, seen(79, 100)).drain_reason is DrainReason.XID
    assert gpu.at(1000, seen(79, 100)).drain_reason is DrainReason.XID
    came_back = replace(seen(79, 100), returned_ns=1001 * S)
    assert gpu.at(1001, came_back).drain_reason is None


def test_a_driver_that_sees_no_action_due_after_the_xid_ends_it() -> None:
    gpu = Gpu()
    before = replace(seen(48, 100), recovery_action=0, slow_observed_ns=99 * S)
    after = replace(before, slow_observed_ns=101 * S)
    assert gpu.at(100, before).drain_reason is DrainReason.XID
    assert gpu.at(170, before).drain_reason is DrainReason.XID, "that answer is older than the XID"
    assert gpu.at(171, after).drain_reason is None


def test_a_driver_that_asks_for_a_reset_keeps_the_board_out() -> None:
    gpu = Gpu()
    asks = replace(seen(94, 100), recovery_action=1)
    assert gpu.at(500, asks).drain_reason is DrainReason.XID
    well = seen(94, 100)
    assert gpu.at(501, well).drain_reason is DrainReason.XID, "the wait counts from the last trouble"
    assert gpu.at(560, well).drain_reason is None


def test_without_any_sign_of_a_reset_an_hour_counts() -> None:
    gpu = Gpu()
    assert gpu.at(3699, seen(79, 100)).drain_reason is DrainReason.XID
    assert gpu.at(3700, seen(79, 100)).drain_reason is None


def test_a_lost_board_that_comes_back_is_still_held_by_its_xid() -> None:
    gpu = Gpu()
    event = (XidSeen(79, 100 * S),)
    assert gpu.at(100, replace(WELL, lost=True, xids=event)).drain_reason is DrainReason.GPU_LOST
    gpu.at(200, replace(WELL, lost=True, xids=event))
    back = replace(WELL, xids=event, returned_ns=201 * S)
    assert gpu.at(201, back).drain_reason is DrainReason.XID
    assert gpu.at(261, back).drain_reason is None


def test_the_drivers_advice_counts_while_it_asks_for_something() -> None:
    """A code that is taken for a program's fault (109) drains where the driver says that the board needs a reset."""
    gpu = Gpu()
    events = (XidSeen(109, 100 * S), XidSeen(154, 100 * S))
    asks = replace(WELL, xids=events, recovery_action=1)
    condition = gpu.at(100, asks)
    assert (condition.drain_reason, condition.detail) == (
        DrainReason.XID, "XID 154: the driver asks for a recovery action",
    )  # fmt: skip
    assert gpu.at(9000, asks).drain_reason is DrainReason.XID
    assert gpu.at(9001, replace(asks, recovery_action=0)).drain_reason is None
    assert Gpu().at(100, replace(WELL, xids=(XidSeen(109, 1), XidSeen(154, 1)))).drain_reason is None
    both = replace(asks, xids=(XidSeen(79, 100 * S), XidSeen(154, 100 * S)))
    assert Gpu().at(100, both).detail == "XID 79: GPU has fallen off the bus"


@pytest.mark.parametrize("code", [13, 31, 38, 43, 45, 63, 109, 154, 157, 9999])
def test_xids_of_programs_notices_and_unknown_codes_drain_nothing(code: int) -> None:
    assert Gpu().at(100, seen(code, 100)).drain_reason is None


def test_codes_can_be_added_and_left_out() -> None:
    settings = ConditionSettings(xid_also=frozenset({31}), xid_ignore=frozenset({74}))
    assert Gpu(settings).at(1, seen(31, 1)).drain_reason is DrainReason.XID
    assert Gpu(settings).at(1, seen(74, 1)).drain_reason is None


def test_a_later_xid_of_a_program_does_not_hide_one_of_the_hardware() -> None:
    health = replace(WELL, xids=(XidSeen(79, 100 * S), XidSeen(45, 101 * S)))
    condition = Gpu().at(102, health)
    assert condition.drain_reason is DrainReason.XID
    assert condition.detail == "XID 79: GPU has fallen off the bus"


def test_a_board_that_was_not_read_keeps_its_condition() -> None:
    before = assess({"g": replace(WELL, lost=True)}, SETTINGS, S, {})
    assert assess({}, SETTINGS, 1000 * S, before) == before


def test_observing_only_reaches_no_endpoint() -> None:
    conditions = assess({"g": replace(WELL, lost=True)}, SETTINGS, S, {})
    assert effective(conditions, SETTINGS)["g"].drain_reason is DrainReason.GPU_LOST
    assert effective(conditions, replace(SETTINGS, observe_only=True)) == {}


def throttled(reasons: int, factor: float = 2.0) -> GpuHealth:
    return replace(WELL, clock_event_reasons=reasons, sm_clock_hertz=1.98e9 / factor)


@pytest.mark.parametrize(
    ("reasons", "reason"),
    [
        (HW_THERMAL, SlowdownReason.THERMAL),
        (SW_THERMAL, SlowdownReason.THERMAL),
        (HW_THERMAL | HW_SLOWDOWN, SlowdownReason.THERMAL),
        (POWER_BRAKE | HW_SLOWDOWN, SlowdownReason.POWER_BRAKE),
        (HW_SLOWDOWN, SlowdownReason.HW_SLOWDOWN),
    ],
)
def test_a_slowdown_counts_once_it_lasts_and_ends_once_it_is_gone(reasons: int, reason: SlowdownReason) -> None:
    gpu = Gpu()
    assert gpu.at(10, throttled(reasons)).slowdown == 1.0
    assert gpu.at(11.9, throttled(reasons)).slowdown == 1.0
    condition = gpu.at(12, throttled(reasons))
    assert condition.slowdown == pytest.approx(2.0)
    assert condition.slowdown_reason is reason
    assert gpu.at(13, WELL).slowdown == pytest.approx(2.0)
    assert gpu.at(22.9, WELL).slowdown == pytest.approx(2.0)
    condition = gpu.at(23, WELL)
    assert (condition.slowdown, condition.slowdown_reason) == (1.0, SlowdownReason.NONE)


def test_a_short_pause_does_not_end_a_slowdown() -> None:
    gpu = Gpu()
    gpu.at(10, throttled(HW_THERMAL))
    gpu.at(12, throttled(HW_THERMAL))
    gpu.at(15, WELL)
    gpu.at(16, throttled(HW_THERMAL))
    assert gpu.at(25, throttled(HW_THERMAL)).slowdown == pytest.approx(2.0)


def test_small_changes_keep_the_factor_and_large_ones_move_it() -> None:
    gpu = Gpu()
    gpu.at(1, throttled(HW_THERMAL, 2.0))
    first = gpu.at(3, throttled(HW_THERMAL, 2.0)).slowdown
    assert first == pytest.approx(2.0)
    assert gpu.at(3.5, throttled(HW_THERMAL, 2.05)).slowdown == first
    assert gpu.at(4, throttled(HW_THERMAL, 3.0)).slowdown == pytest.approx(3.0)
    assert gpu.at(5, throttled(HW_THERMAL, 99.0)).slowdown == 10.0


def test_full_clocks_and_the_power_cap_are_no_slowdown_by_default() -> None:
    gpu = Gpu()
    for second in range(1, 6):
        assert gpu.at(second, throttled(HW_THERMAL, 1.05)).slowdown == 1.0
    capped = Gpu()
    for second in range(1, 6):
        assert capped.at(second, throttled(SW_POWER_CAP)).slowdown == 1.0
    counted = Gpu(ConditionSettings(slowdown_power_cap=True))
    counted.at(1, throttled(SW_POWER_CAP))
    assert counted.at(3, throttled(SW_POWER_CAP)).slowdown_reason is SlowdownReason.POWER_CAP


def test_an_idle_board_that_is_clocked_down_is_not_slow() -> None:
    gpu = Gpu()
    for second in range(1, 6):
        assert gpu.at(second, throttled(SW_THERMAL | IDLE, 6.0)).slowdown in (1.0, None)


def test_unknown_clocks_are_an_unknown_slowdown() -> None:
    assert Gpu().at(1, GpuHealth(0, clock_event_reasons=HW_THERMAL)).slowdown is None
    assert Gpu().at(1, replace(WELL, clock_event_reasons=None)).slowdown is None


def test_whatever_comes_in_the_factor_stays_in_its_range() -> None:
    chance = random.Random(7)
    gpu = Gpu()
    for second in range(1, 2000):
        health = GpuHealth(
            0,
            lost=chance.random() < 0.05,
            clock_event_reasons=chance.choice([None, 0, 0x40, 0x41, 0xE8, 0xFFF]),
            sm_clock_hertz=chance.choice([None, 0.0, 1e6, 1.98e9, 5e9]),
            sm_clock_max_hertz=chance.choice([None, 0.0, 1.98e9]),
        )
        slowdown = gpu.at(second / 3, health).slowdown
        assert slowdown is None or 1.0 <= slowdown <= 10.0


def test_no_code_stands_in_two_tables() -> None:
    kinds = {kind: [code for code, entry in XIDS.items() if entry.kind is kind] for kind in XidKind}
    assert all(kinds.values())
    assert xid(79).kind is XidKind.RESET
    assert xid(94).kind is XidKind.TRANSIENT
    assert xid(136).kind is XidKind.RESET
    assert xid(13).kind is XidKind.APPLICATION
    assert xid(12345).kind is XidKind.NOTICE

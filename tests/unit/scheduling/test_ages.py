"""Ages: fresh values count, ageing ones fade to the mean, old ones are unknown; unknown never wins by being unknown."""

from __future__ import annotations

import itertools
import math

import pytest

from unit.scheduling.synthetic import NOW_NS, endpoints
from unit.scheduling.world import MS, World, chat, pipeline
from zerohop_picker.scheduling_contract import Decision
from zerohop_picker.state.view import GAUGES
from zerohop_snapshot import ENDPOINT_COLUMNS, Flag

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [
        (0, 0.0),
        (199, 0.0),
        (200, 0.0),
        (1100, 4.0),
        (1999, pytest.approx(8.0, abs=0.01)),
        (2000, math.nan),
        (60_000, math.nan),
    ],
)
def test_a_value_fades_towards_the_mean_of_the_fresh_ones_and_is_then_unknown(age_ms: int, expected: float) -> None:
    observed = [NOW_NS - age_ms * MS, NOW_NS, NOW_NS]
    made = endpoints(3, waiting=[0, 6, 10], observed_ns=observed, scrape_interval_s=[0.05] * 3)
    assert made.column("waiting")[0] == pytest.approx(expected, nan_ok=True)
    assert list(made.column("waiting")[1:]) == [6, 10]


def test_slowly_scraped_endpoints_have_wider_bounds() -> None:
    made = endpoints(
        2, waiting=[3, 5], observed_ns=[NOW_NS - 2 * SECOND, NOW_NS - 31 * SECOND], scrape_interval_s=[1, 3]
    )
    assert list(made.column("waiting")) == pytest.approx([3, math.nan], nan_ok=True)


def test_never_observed_is_unknown_and_not_zero() -> None:
    made = endpoints(2, waiting=[0, 1], observed_ns=[0, NOW_NS], scrape_interval_s=[0.05] * 2)
    assert math.isnan(made.column("waiting")[0])
    assert math.isnan(made.age_s()[0])


def test_never_observed_is_unknown_on_a_machine_that_has_just_started() -> None:
    made = endpoints(1, waiting=[0], observed_ns=[0], scrape_interval_s=[0.05], now_ns=SECOND)
    assert math.isnan(made.column("waiting")[0])


def test_facts_of_an_endpoint_do_not_age() -> None:
    made = endpoints(1, max_model_len=[4096], observed_ns=[1], detail_observed_ns=[1])
    assert made.column("max_model_len")[0] == 4096


@pytest.mark.parametrize("config", ["", pipeline(scorers={"queue-scorer": 2, "kv-cache-utilization-scorer": 2})])
def test_an_endpoint_that_was_never_scraped_does_not_beat_a_known_one(world: World, config: str) -> None:
    """GIE#1497, llm-d-router#2822: "unknown" must not look like "idle"."""
    world.add("unknown", waiting=None, running=None, kv_cache_usage=None, observed_ns=0)
    world.add("busy", waiting=3.0, kv_cache_usage=0.7)
    world.add("busier", waiting=4.0, kv_cache_usage=0.8)
    world.publish()
    scheduler = world.scheduler(config)
    world.now_ns += MS
    assert {world.pick(scheduler) for _ in range(3)} <= {"busy", "busier"}


def test_unknown_loses_even_a_tie(world: World) -> None:
    world.add("unknown", waiting=None)
    world.add("known", waiting=2.0)
    world.publish()
    for seed in range(20):
        scheduler = world.scheduler(pipeline(scorers={"queue-scorer": 1}), worker=f"w{seed}", seed=seed)
        decision = scheduler.schedule(chat(), world.now_ns - MS)
        assert isinstance(decision, Decision)
        assert world.name_of(decision.endpoints[0]) == "known"


def test_stale_endpoints_are_left_out_and_taken_when_there_is_nothing_else(world: World) -> None:
    """GIE#1497: a pod that stopped reporting while idle must not draw the traffic; all stale still answers."""
    world.add("stale", flags=Flag.STALE, observed_ns=world.now_ns - 30 * SECOND)
    world.add("fresh", waiting=40.0)
    world.publish()
    scheduler = world.scheduler()
    assert {world.pick(scheduler) for _ in range(5)} == {"fresh"}
    world.change("fresh", waiting=40.0, flags=Flag.STALE, observed_ns=world.now_ns - 20 * SECOND)
    world.publish()
    assert {world.pick(scheduler) for _ in range(20)} == {"stale", "fresh"}
    assert scheduler.measures.degraded.value == 20


def test_a_silent_agent_means_round_robin_over_the_last_known_endpoints(world: World) -> None:
    world.add("a", waiting=50.0)
    world.add("b")
    world.add("drained", flags=Flag.DRAIN)
    world.publish()
    scheduler = world.scheduler()
    world.now_ns += 3 * SECOND
    picks = [world.pick(scheduler) for _ in range(12)]
    assert {frozenset(pair) for pair in itertools.pairwise(picks)} == {frozenset("ab")}
    assert scheduler.measures.fallbacks.value == 12


def test_no_snapshot_is_a_503(world: World) -> None:
    refusal = world.refused(world.scheduler())
    assert (refusal.status, refusal.reason) == (503, "rejected-no-endpoints")
    assert not world.scheduler(worker="w1").ready(None)


def test_the_gauges_that_are_read_as_one_lie_side_by_side() -> None:
    names = [column.name for column in ENDPOINT_COLUMNS]
    start = names.index(GAUGES[0])
    assert tuple(names[start : start + len(GAUGES)]) == GAUGES
    made = endpoints(2, waiting=[1, 2], running=[3, 4], kv_cache_usage=[0.5, 0.25], slowdown=[1, 2])
    assert [made.column(name).tolist() for name in GAUGES] == [[1, 2], [3, 4], [0.5, 0.25], [1, 2]]

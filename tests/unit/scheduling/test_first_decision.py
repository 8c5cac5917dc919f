"""The default pipeline: usable endpoints; least waiting + picks since, then KV use, ties at random; fallbacks."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path

from unit.scheduling.world import MS, World, chat
from zerohop_picker.scheduling_contract import Decision, Outcome
from zerohop_snapshot import Flag


def test_least_waiting_wins_and_kv_use_orders_equal_queues(world: World) -> None:
    world.add("a", waiting=3.0, kv_cache_usage=0.0)
    world.add("b", waiting=1.0, kv_cache_usage=0.9)
    world.add("c", waiting=1.0, kv_cache_usage=0.2)
    world.publish()
    scheduler = world.scheduler()
    decision = scheduler.schedule(chat(), world.now_ns)
    assert isinstance(decision, Decision)
    assert [world.name_of(address) for address in decision.endpoints] == ["c", "b", "a"]


def test_picks_since_the_gauge_spread_a_burst(world: World) -> None:
    for name in "abcd":
        world.add(name)
    world.publish()
    scheduler = world.scheduler()
    world.now_ns += MS
    picks = Counter(world.pick(scheduler) for _ in range(40))
    assert picks == dict.fromkeys("abcd", 10)


def test_picks_of_another_worker_count(world: World) -> None:
    world.add("a")
    world.add("b", kv_cache_usage=0.5)
    world.publish()
    one, two = world.scheduler(worker="w1"), world.scheduler(worker="w2")
    world.now_ns += MS
    assert world.pick(one) == "a"
    assert world.pick(two) == "b"


def test_a_newer_gauge_takes_picks_out_again(world: World) -> None:
    world.add("a")
    world.add("b", waiting=3.5)
    world.publish()
    scheduler = world.scheduler()
    world.now_ns += MS
    assert [world.pick(scheduler) for _ in range(2)] == ["a", "a"]
    world.now_ns += MS
    world.change("a", waiting=0.0)
    world.publish()
    world.now_ns += MS
    assert [world.pick(scheduler) for _ in range(5)] == ["a", "a", "a", "a", "b"]


def test_equal_endpoints_are_drawn_at_random(world: World) -> None:
    for name in "abcd":
        world.add(name)
    world.publish()
    firsts: Counter[str] = Counter()
    scheduler = world.scheduler()
    for _ in range(400):
        decision = scheduler.schedule(chat(), world.now_ns - MS)
        assert isinstance(decision, Decision)
        firsts[decision.endpoints[0]] += 1
        decision.ticket.finish(Outcome.COMPLETE)
    assert len(firsts) == 4
    assert min(firsts.values()) > 60


def test_unusable_endpoints_are_left_out_while_another_can_serve(world: World) -> None:
    for flag in (Flag.DRAIN, Flag.UNHEALTHY, Flag.STALE, Flag.SLEEPING, Flag.STUCK):
        world.add(flag.name or "", flags=flag)
    world.add("good", waiting=50.0)
    world.publish()
    decision = world.scheduler().schedule(chat(), world.now_ns)
    assert isinstance(decision, Decision)
    assert [world.name_of(address) for address in decision.endpoints] == ["good"]


def test_in_flight_returns_to_zero_after_finish_called_twice(world: World) -> None:
    row = world.add("a")
    world.publish()
    scheduler = world.scheduler()
    decision = scheduler.schedule(chat("x" * 4000), world.now_ns)
    assert isinstance(decision, Decision)
    assert scheduler._cell.in_flight(row, 1) == 1
    decision.ticket.finish(Outcome.ABORTED)
    decision.ticket.finish(Outcome.ABORTED)
    assert scheduler._cell.in_flight(row, 1) == 0


def test_a_decision_among_a_thousand_allocates_no_more_than_one_array_of_the_pools_size(tmp_path: Path) -> None:
    world = World(tmp_path, capacity=1024)
    for number in range(1024):
        world.add(f"p{number}", address=f"10.0.{number >> 8}.{number & 255}:8000", waiting=float(number % 7))
    world.publish()
    scheduler = world.scheduler()
    for _ in range(20):
        world.pick(scheduler)
    request = chat()
    request.canonical_prompt()
    tracemalloc.start()
    decision = scheduler.schedule(request, world.now_ns)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(decision, Decision)
    assert peak < 1.5 * 8 * 1024, peak
    world.close()

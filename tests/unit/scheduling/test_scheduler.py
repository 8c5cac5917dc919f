"""The scheduler as a front uses it: decisions, tickets, models, scores, faults and swaps of the configuration."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from unit.scheduling.world import HEAD, LONG, MS, PROFILES, World, chat
from zerohop_picker.scheduling import load
from zerohop_picker.scheduling_contract import Decision, Outcome
from zerohop_snapshot import PeerCells, SnapshotReader
from zerohop_snapshot.prefix import PrefixDirectory


@pytest.mark.parametrize("serves", ["a", "b", "nobody"])
@pytest.mark.parametrize(
    "steps", [(), ("first_token",), ("served",), ("served", "first_token"), ("first_token", "served")]
)
def test_a_ticket_leaves_nothing_behind(world: World, serves: str, steps: tuple[str, ...]) -> None:
    rows = {"a": world.add("a"), "b": world.add("b", waiting=1.0)}
    world.publish()
    scheduler = world.scheduler()
    decision = scheduler.schedule(chat(LONG), world.now_ns)
    assert isinstance(decision, Decision)
    for step in steps:
        if step == "served":
            decision.ticket.served(world.address(serves) if serves in rows else "10.9.9.9:1")
        else:
            decision.ticket.first_token()
    cell = PeerCells(world.shm_dir)
    where = serves if "served" in steps and serves in rows else "a"
    assert {name: cell.in_flight(row, 1) for name, row in rows.items()} == {
        "a": int(where == "a"),
        "b": int(where == "b"),
    }
    decision.ticket.finish(Outcome.COMPLETE)
    decision.ticket.finish(Outcome.COMPLETE)
    decision.ticket.first_token()
    decision.ticket.served(world.address("b"))
    requests, tokens = scheduler._loads._cells.in_flight(np.ones(16, np.uint32))
    assert requests.sum() == 0
    assert tokens.sum() == 0


def test_a_burst_for_an_adapter_that_nobody_has_yet_goes_to_one_endpoint(world: World) -> None:
    for name in "abcd":
        world.add(name, lora_max=1.0, lora_count=0.0, models=["base", "new"])
        world.cold["endpoints"][world.rows[name]]["adapters"] = ["new"]
    world.publish()
    text = (PROFILES / "lora.yaml").read_text().replace("DepthThreshold: 64", "DepthThreshold: 16")
    one, two = world.scheduler(text, worker="w1", seed=1), world.scheduler(text, worker="w2", seed=2)
    world.now_ns += MS
    adapters = {world.pick(worker, chat(model="new")) for worker in (one, two) * 5}
    assert len(adapters) == 1
    assert len({world.pick(one, chat(model="base")) for _ in range(6)}) > 1
    # Sixteen picks that no gauge shows yet are a full queue: now another endpoint has to load it.
    later = [world.pick(two, chat(model="new")) for _ in range(12)]
    assert len(set(later)) == 2


def test_a_reserved_model_is_a_404_and_a_rewrite_reaches_the_body(world: World) -> None:
    row = world.add("a")
    world.writer.endpoints.set(row, "pools", 1)
    world.cold["pools"] = [{"name": "default/p", "models": [
        {"name": "one", "modelName": "reserved", "targetModels": [{"name": "x", "weight": 0}]},
        {"name": "two", "modelName": "split",
         "targetModels": [{"name": "v1", "weight": 3}, {"name": "v2", "weight": 1}]},
    ]}]  # fmt: skip
    world.publish()
    scheduler = world.scheduler()
    assert world.refused(scheduler, chat(model="reserved", pool="default/p")).status == 404
    drawn: Counter[str | None] = Counter()
    for _ in range(40):
        decision = scheduler.schedule(chat(model="split", pool="default/p"), world.now_ns)
        assert isinstance(decision, Decision)
        drawn[decision.model] += 1
    assert drawn == {"v1": 30, "v2": 10}
    untouched = scheduler.schedule(chat(model="else", pool="default/p"), world.now_ns)
    assert isinstance(untouched, Decision)
    assert untouched.model is None


def test_scores_are_told_only_when_switched_on_and_asked_for(world: World) -> None:
    world.add("a", waiting=2.0)
    world.add("b", kv_cache_usage=None)
    world.publish()
    plain = (PROFILES / "gie.yaml").read_text()
    asked = {"x-zerohop-debug": "1"}
    silent = world.scheduler(plain).schedule(chat(headers=asked), world.now_ns)
    assert isinstance(silent, Decision)
    assert silent.response_headers == ()
    scheduler = world.scheduler(plain + "featureGates: [debugScores]\n", worker="w1")
    decision = scheduler.schedule(chat(headers=asked), world.now_ns)
    assert isinstance(decision, Decision)
    scores = {entry["plugin"]: entry for entry in json.loads(dict(decision.response_headers)["x-zerohop-scores"])}
    assert scores["queue-scorer"]["values"] == {world.address("a"): 0.0, world.address("b"): 1.0}
    assert scores["queue-scorer"]["weight"] == 2.0
    assert scores["kv-cache-utilization-scorer"]["values"][world.address("b")] is None
    unasked = scheduler.schedule(chat(), world.now_ns)
    assert isinstance(unasked, Decision)
    assert unasked.response_headers == ()


def test_a_fault_of_our_own_ends_in_the_fallback_and_not_in_an_error(world: World) -> None:
    world.add("a")
    world.publish()

    class Broken:
        """A directory that fails where the pipeline cannot catch it: once the request's endpoint is known."""

        def insert(self, hashes: object, row: int, generation: int, now_ns: int) -> object:
            raise RuntimeError("insert")

        def __getattr__(self, name: str) -> Any:
            return getattr(whole, name)

    whole = PrefixDirectory(world.shm_dir, entries=4096, endpoint_capacity=world.capacity)
    scheduler = world.scheduler(directory=Broken())
    assert world.pick(scheduler, chat("x" * 4000)) == "a"
    assert scheduler.measures.faults.value == 1


def test_a_swap_takes_effect_with_the_next_request(world: World) -> None:
    world.add("queued", waiting=3.0, kv_cache_usage=0.0)
    world.add("full", kv_cache_usage=0.9)
    world.publish()
    scheduler = world.scheduler(HEAD + "plugins:\n- type: queue-scorer\n")
    assert world.pick(scheduler) == "full"
    scheduler.swap(load(HEAD + "plugins:\n- type: kv-cache-utilization-scorer\n", "c.yaml"))
    assert world.pick(scheduler) == "queued"


def test_permuted_rows_decide_alike(world: World) -> None:
    for name, waiting in (("c", 5.0), ("a", 1.0), ("b", 3.0)):
        world.add(name, waiting=waiting)
    world.publish()
    reader = SnapshotReader(world.shm_dir)
    assert reader.read() is not None
    assert world.pick(world.scheduler()) == "a"

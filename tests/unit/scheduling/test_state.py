"""State that outlives a request: picks since, tickets, prefixes, sessions - between workers and over restarts."""

# ruff: noqa: E501
from __future__ import annotations

import base64
import json
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.scheduling.synthetic import NOW_NS, view
from unit.scheduling.world import HEAD, MS, World, chat
from zerohop_picker.scheduling import load
from zerohop_picker.scheduling.scheduler import StandardScheduler
from zerohop_picker.scheduling_contract import Decision, Outcome
from zerohop_picker.state.loads import HORIZON_NS, Loads
from zerohop_picker.state.names import Names
from zerohop_picker.state.prefixes import PrefixSettings, domain
from zerohop_picker.state.view import Floats
from zerohop_snapshot import PeerCells, SnapshotReader
from zerohop_snapshot.prefix import PrefixDirectory

PROFILES = Path(__file__).parents[3] / "manifests/profiles"
LONG = "the same long beginning " * 400


class Log:
    """A pick log of eight entries."""

    def __init__(self) -> None:
        self.ns = np.zeros(64, np.uint64)
        self.row = np.zeros(64, np.uint32)
        self.tokens = np.zeros(64, np.uint32)
        self.head = 0

    def add(self, ns: int, row: int, tokens: int = 0) -> None:
        at = self.head % len(self.ns)
        self.ns[at], self.row[at], self.tokens[at] = ns, row, tokens
        self.head += 1


class Logs:
    def __init__(self, *logs: Log) -> None:
        self._logs = list(logs)

    def logs(self) -> list[Log]:
        return self._logs

    def in_flight(self, generations: object) -> tuple[Floats, Floats]:
        return np.zeros(8), np.zeros(8)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("pick"), st.integers(0, 1), st.integers(0, 2)),
            st.tuples(st.just("observe"), st.integers(0, 2), st.just(0)),
            st.tuples(st.just("look"), st.just(0), st.just(0)),
        ),
        max_size=120,
    )
)
def test_picks_since_is_the_count_of_entries_newer_than_each_gauge(steps: list[tuple[str, int, int]]) -> None:
    """However the calls interleave, the running counts agree with a count from scratch."""
    logs = (Log(), Log())
    loads = Loads(Logs(*logs))
    now, observed, history, sequence = NOW_NS, [NOW_NS] * 3, [], 1
    seen = view(3, observed_ns=observed)
    for kind, first, second in steps:
        now += 1000
        if kind == "pick":
            logs[first].add(now, second, 10)
            history.append((now, second))
        elif kind == "observe":
            observed[first] = now
            sequence += 1
            seen = view(3, observed_ns=list(observed))
            seen.sequence = sequence
        loads.settle(seen, now)
        expected = [sum(1 for ns, row in history[-128:] if row == r and ns > observed[r]) for r in range(3)]
        if len(history) <= 64:
            assert loads.picks[:3].tolist() == expected
            assert loads.picked_tokens[:3].tolist() == [10 * count for count in expected]


def test_a_burst_of_more_picks_than_are_counted_one_by_one() -> None:
    log = Log()
    loads = Loads(Logs(log))
    for index in range(100):
        log.add(NOW_NS + 1 + index, index % 2, 5)
    log.add(NOW_NS + 200, 99)  # a row beyond the table
    loads.settle(view(3), NOW_NS + 300)
    assert loads.picks[:3].tolist() == [31.0, 32.0, 0.0]  # the ring holds the last 64, one of them foreign
    later = view(3, observed_ns=[NOW_NS, NOW_NS + 80, NOW_NS])
    later.sequence = 2
    loads.settle(later, NOW_NS + 300)
    assert loads.picks[:3].tolist() == [31.0, 10.0, 0.0]
    assert loads.picked_tokens[:3].tolist() == [155.0, 50.0, 0.0]


def test_the_mean_prompt_follows_the_picks_and_forgets_slowly() -> None:
    log = Log()
    loads = Loads(Logs(log))
    seen = view(1)
    loads.settle(seen, NOW_NS)
    assert loads.mean_tokens > 0  # before the first pick a waiting request counts for something, too
    for count, expected in ((1, 100.0), (10, 100.0)):
        for _ in range(count):
            log.add(NOW_NS + 1, 0, 100)
        loads.settle(seen, NOW_NS + 2)
        assert loads.mean_tokens == pytest.approx(expected)
    log.add(NOW_NS + 3, 0, 1000)
    loads.settle(seen, NOW_NS + 4)
    assert 100 < loads.mean_tokens < 200


@pytest.mark.parametrize("newer", range(12))
def test_the_first_pick_that_counts_is_found_wherever_it_lies(newer: int) -> None:
    log = Log()
    loads = Loads(Logs(log))
    for index in range(20):
        log.add(NOW_NS + index, 0)
    loads.settle(view(1, observed_ns=[NOW_NS + 19 - newer]), NOW_NS + 100)
    assert loads.picks[0] == newer


def test_picks_older_than_the_horizon_are_not_counted() -> None:
    log = Log()
    loads = Loads(Logs(log))
    log.add(NOW_NS + 1, 0)
    loads.settle(view(1, observed_ns=[0]), NOW_NS + HORIZON_NS + 2)
    assert loads.picks[0] == 0


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


def test_the_same_prefix_goes_to_the_same_endpoint_from_any_worker_and_after_a_restart(world: World) -> None:
    for name in "abcd":
        world.add(name)
    world.publish()
    first = world.scheduler(worker="w1", seed=1)
    home = world.pick(first, chat(LONG + "question one"))
    for worker in ("w2", "w3"):
        other = world.scheduler(worker=worker, seed=int(worker[1]))
        assert {world.pick(other, chat(LONG + f"question {number}")) for number in range(3)} == {home}
    first.close()
    again = world.scheduler(worker="w4", seed=9)
    assert world.pick(again, chat(LONG + "after the restart")) == home
    assert world.pick(again, chat("another beginning " * 400)) in "abcd"


def test_another_model_salt_or_adapter_is_another_prefix(world: World) -> None:
    names = Names({"adapters": ["lora"]}, 8)
    domains = {
        domain("m", names, None), domain("m2", names, None), domain("lora", names, None), domain("m", names, "s"),
        domain("m", names, ""), domain(None, names, None), domain("", names, None), domain("ms", names, None),
    }  # fmt: skip
    assert len(domains) == 8
    for name in "ab":
        world.add(name)
    world.publish()
    scheduler = world.scheduler()
    assert scheduler._prefixes is not None
    world.pick(scheduler, chat(LONG))
    seen = scheduler._latest.view(world.now_ns)
    assert seen is not None

    def matched(llm: object, model: str) -> float:
        lookup = scheduler._prefixes.look_up(llm, model, seen)  # type: ignore[union-attr,arg-type]
        assert lookup is not None
        return float(lookup.longest)

    assert matched(chat(LONG), "m") > 0
    assert matched(chat(LONG), "other") == 0
    salted = json.dumps({"model": "m", "cache_salt": "s", "messages": [{"role": "user", "content": LONG}]}).encode()
    request = chat(LONG)
    request.body = salted
    request._prompt = None
    assert matched(request, "m") == 0


def test_blocks_are_tuned_to_the_engines_unless_told_otherwise() -> None:
    def names(*sizes: int | None) -> Names:
        return Names(
            {"endpoints": {row: {"address": f"10.0.0.{row}:1", "block_size": size} for row, size in enumerate(sizes)}},
            8,
        )

    assert PrefixSettings().block_bytes(names(16, 16)) == 1024
    assert PrefixSettings().block_bytes(names(None)) == 1024
    assert PrefixSettings().block_bytes(names(16, 784)) == 4096
    assert PrefixSettings(auto_tune=False, block_size_tokens=16).block_bytes(names(16)) == 256
    assert PrefixSettings(auto_tune=False, block_size_tokens=128).block_bytes(names(16)) == 512


def test_the_directory_is_bounded_and_capacity_follows_the_kv_geometry(world: World) -> None:
    """production-stack#687: a million distinct prompts must not take more memory than a thousand."""
    world.add("a", block_size=16, num_blocks=4096)  # 65,536 tokens are 256 blocks of 1 kB
    world.publish()
    scheduler = world.scheduler()
    directory: PrefixDirectory = scheduler._prefixes._directory  # type: ignore[union-attr,assignment]
    for number in range(80):
        world.pick(scheduler, chat(f"{number} " * 3000))
        world.now_ns += 20_000_000  # the directory tells times apart from 10 ms on
    seen = scheduler._latest.view(world.now_ns)
    assert seen is not None
    for number, expected in ((0, False), (79, True)):
        lookup = scheduler._prefixes.look_up(chat(f"{number} " * 3000), "m", seen)  # type: ignore[union-attr]
        assert lookup is not None
        assert bool(lookup.longest) is expected
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(160):
        world.pick(scheduler, chat(f"again {number} " * 3000))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert directory.stats().entries <= directory.stats().capacity
    assert grown < 100_000


SESSION = (PROFILES / "session.yaml").read_text()


def test_a_session_id_stays_on_its_endpoint_from_any_worker_until_its_ttl(world: World) -> None:
    for name in "abcd":
        world.add(name)
    world.publish()
    one, two = world.scheduler(SESSION, worker="w1", seed=1), world.scheduler(SESSION, worker="w2", seed=2)
    asked = {"x-session-id": "s-1"}
    home = world.pick(one, chat(headers=asked))
    world.change(home, waiting=4.0)
    world.publish()
    assert {world.pick(two, chat(headers=asked)) for _ in range(4)} == {home}
    world.now_ns += 301_000_000_000
    for name in "abcd":
        world.change(name, waiting=9.0 if name == home else 0.0)
    world.publish()
    assert world.pick(one, chat(headers=asked)) != home


def test_a_session_whose_endpoint_is_gone_moves(world: World) -> None:
    world.add("a")
    world.add("b", waiting=1.0)
    world.publish()
    scheduler = world.scheduler(SESSION)
    asked = {"x-session-id": "s"}
    assert world.pick(scheduler, chat(headers=asked)) == "a"
    row = world.rows.pop("a")
    world.writer.remove_endpoint("a")
    del world.cold["endpoints"][row]
    world.publish()
    assert world.pick(scheduler, chat(headers=asked)) == "b"
    world.add("c")
    world.change("b", waiting=2.0)
    world.publish()
    assert world.pick(scheduler, chat(headers=asked)) == "b"


def test_a_session_token_names_its_endpoint_and_is_given_back(world: World) -> None:
    world.add("a")
    world.add("b", waiting=3.0)
    world.publish()
    scheduler = world.scheduler((PROFILES / "session-token.yaml").read_text())
    token = base64.b64encode(b"default/b").decode()
    decision = scheduler.schedule(chat(headers={"x-session-token": token}), world.now_ns)
    assert isinstance(decision, Decision)
    assert world.name_of(decision.endpoints[0]) == "b"
    assert decision.response_headers == (("x-session-token", token.encode()),)
    for junk in ("%%%", "", base64.b64encode(b"\xff").decode(), base64.b64encode(b"default/nobody").decode()):
        assert world.pick(scheduler, chat(headers={"x-session-token": junk})) == "a"


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


def disaggregated(world: World) -> None:
    world.add("decode", labels={"llm-d.ai/role": "decode"})
    world.add("prefill-1", labels={"llm-d.ai/role": "prefill"}, waiting=4.0)
    world.add("prefill-2", labels={"llm-d.ai/role": "prefill"})
    world.publish()


def test_a_long_uncached_prompt_is_prefilled_elsewhere(world: World) -> None:
    disaggregated(world)
    scheduler = world.scheduler((PROFILES / "pd.yaml").read_text())
    long = scheduler.schedule(chat(LONG), world.now_ns)
    assert isinstance(long, Decision)
    assert world.name_of(long.endpoints[0]) == "decode"
    assert long.request_headers == (("x-prefiller-host-port", world.address("prefill-2").encode()),)
    cell = PeerCells(world.shm_dir)
    assert [cell.in_flight(world.rows[name], 1) for name in ("decode", "prefill-2")] == [1, 1]
    long.ticket.first_token()
    assert [cell.in_flight(world.rows[name], 1) for name in ("decode", "prefill-2")] == [1, 0]
    long.ticket.finish(Outcome.COMPLETE)
    assert [cell.in_flight(world.rows[name], 1) for name in ("decode", "prefill-2")] == [0, 0]
    short = scheduler.schedule(chat("short"), world.now_ns)
    cached = scheduler.schedule(chat(LONG), world.now_ns)
    assert isinstance(short, Decision)
    assert isinstance(cached, Decision)
    assert short.request_headers == cached.request_headers == ()


def test_without_a_prefill_endpoint_decode_does_both_and_without_decode_it_is_a_503(world: World) -> None:
    world.add("decode", labels={"llm-d.ai/role": "decode"})
    world.publish()
    text = (PROFILES / "pd.yaml").read_text()
    decision = world.scheduler(text).schedule(chat(LONG), world.now_ns)
    assert isinstance(decision, Decision)
    assert decision.request_headers == ()
    world.cold["endpoints"][0]["labels"] = {"llm-d.ai/role": "prefill"}
    world.publish()
    assert world.refused(world.scheduler(text, worker="w2"), chat(LONG)).status == 503


def test_an_image_goes_through_the_encode_stage(world: World) -> None:
    for role in ("encode", "decode"):
        world.add(role, labels={"llm-d.ai/role": role})
    world.publish()
    text = HEAD + (
        "plugins:\n- type: encode-filter\n- type: decode-filter\n- type: always-disagg-multimodal-decider\n"
        "- type: disagg-profile-handler\n  parameters: {deciders: {encode: always-disagg-multimodal-decider}}\n"
        "schedulingProfiles:\n- {name: encode, plugins: [{pluginRef: encode-filter}]}\n"
        "- {name: decode, plugins: [{pluginRef: decode-filter}]}\n"
    )
    scheduler = world.scheduler(text)
    request = chat()
    request.body = (
        b'{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/y"}}]}]}'
    )
    decision = scheduler.schedule(request, world.now_ns)
    assert isinstance(decision, Decision)
    assert decision.request_headers == (("x-encoder-hosts-ports", world.address("encode").encode()),)
    plain = scheduler.schedule(chat(), world.now_ns)
    assert isinstance(plain, Decision)
    assert plain.request_headers == ()


def test_the_profile_named_by_the_header_runs(world: World) -> None:
    world.add("a", labels={"tier": "batch"}, waiting=3.0, gpu_utilization=0.5)
    world.add("b")
    world.publish()
    scheduler = world.scheduler((PROFILES / "header.yaml").read_text())
    assert world.pick(scheduler) == "b"
    assert world.pick(scheduler, chat(headers={"epp-profile": "batch"})) == "a"
    assert world.pick(scheduler, chat(headers={"epp-profile": "nonsense"})) == "b"


def test_data_parallel_ranks_are_named_in_a_header(world: World) -> None:
    world.add("rank-0", waiting=3.0)
    world.add("rank-1", address="[fd00::7]:8001")
    world.publish()
    text = HEAD + "plugins:\n- type: data-parallel-profile-handler\n- type: queue-scorer\n"
    decision = world.scheduler(text).schedule(chat(), world.now_ns)
    assert isinstance(decision, Decision)
    assert decision.endpoints == ("[fd00::7]:8000",)
    assert decision.request_headers == (("x-data-parallel-host-port", b"[fd00::7]:8001"),)


def test_a_reserved_model_is_a_404_and_a_rewrite_reaches_the_body(world: World) -> None:
    row = world.add("a")
    world.writer.endpoints.set(row, "pools", 1)
    world.cold["pools"] = [{"name": "default/p", "models": [
        {"name": "one", "modelName": "reserved", "targetModels": [{"name": "x", "weight": 0}]},
        {"name": "two", "modelName": "split", "targetModels": [{"name": "v1", "weight": 3}, {"name": "v2", "weight": 1}]},
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
    scheduler: StandardScheduler = world.scheduler()

    class Broken:
        config = load()

        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

    scheduler._pipeline = Broken()  # type: ignore[assignment]
    assert world.pick(scheduler) == "a"
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
    assert MS

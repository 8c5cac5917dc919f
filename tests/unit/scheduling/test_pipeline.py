"""The hermetic cases of the field's pickers, and what the answer is when there is nobody to pick."""

# ruff: noqa: E501
from __future__ import annotations

from pathlib import Path

import pytest

from unit.scheduling.world import HEAD, MS, World, chat, pipeline
from zerohop_picker.request.model import LLMRequest
from zerohop_picker.scheduling import refusals
from zerohop_picker.scheduling_contract import Decision
from zerohop_snapshot import Flag

PROFILES = Path(__file__).parents[3] / "manifests/profiles"
HERMETIC = pipeline(
    scorers={"queue-scorer": 1, "kv-cache-utilization-scorer": 1, "prefix-cache-scorer": 1, "lora-affinity-scorer": 1}
)
SHEDDABLE = {"models": [{"modelName": "cheap", "criticality": "Sheddable"}]}


def gie_pods(world: World, *pods: tuple[float, float, str]) -> None:
    """Pods as (waiting, KV use, adapters that run there), all with room for four."""
    adapters: dict[str, int] = {}
    for index, (waiting, usage, running) in enumerate(pods):
        bits = 0
        names = [name for name in running.split(",") if name]
        for name in names:
            bits |= 1 << adapters.setdefault(name, len(adapters))
        world.add(
            f"pod-{index}",
            waiting=waiting,
            kv_cache_usage=usage,
            lora_running_0=bits,
            lora_max=4.0,
            lora_count=len(names),
        )
    world.cold["adapters"] = list(adapters)
    world.publish()


def test_select_lower_queue_and_kv_cache(world: World) -> None:
    gie_pods(world, (3, 0.2, ""), (0, 0.1, ""), (10, 0.2, ""))
    for config in (HERMETIC, (PROFILES / "gie.yaml").read_text()):
        assert world.pick(world.scheduler(config, worker=str(len(config)))) == "pod-1"


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_profile_that_ships_takes_the_idle_pod(world: World, path: Path) -> None:
    gie_pods(world, (3, 0.2, ""), (0, 0.1, ""), (10, 0.2, ""))
    assert world.pick(world.scheduler(path.read_text())) == "pod-1"


def test_select_active_lora_with_low_queue(world: World) -> None:
    gie_pods(world, (0, 0.2, "foo,bar"), (0, 0.1, "foo,sql-lora"), (10, 0.2, "foo,bar"))
    assert world.pick(world.scheduler(HERMETIC), chat(model="sql-lora")) == "pod-1"


def test_select_lora_despite_higher_kv_cache_use(world: World) -> None:
    gie_pods(world, (10, 0.2, "foo,bar"), (10, 0.4, "foo,bar"), (10, 0.85, "foo,sql-lora"))
    config = pipeline(scorers={"queue-scorer": 1, "kv-cache-utilization-scorer": 1, "lora-affinity-scorer": 4})
    assert world.pick(world.scheduler(config), chat(model="sql-lora")) == "pod-2"


def test_requests_are_not_shed_by_default(world: World) -> None:
    gie_pods(world, (6, 0.2, "foo"), (0, 0.85, "foo"), (10, 0.9, "foo"))
    assert world.pick(world.scheduler(HERMETIC)) == "pod-0"  # 0.4 + 0.8 against 1 + 0.15


def test_subset_best_partial_and_none(world: World) -> None:
    gie_pods(world, (0, 0.1, ""), (5, 0.5, ""), (9, 0.9, ""))
    scheduler = world.scheduler(HERMETIC)
    assert world.pick(scheduler, chat(subset=(world.address("pod-1"), world.address("pod-2")))) == "pod-1"
    assert world.pick(scheduler, chat(subset=(world.address("pod-2"), "10.9.9.9:8000"))) == "pod-2"
    assert world.pick(scheduler, chat(subset=("10.0.0.2",))) == "pod-2"
    refusal = world.refused(scheduler, chat(subset=("10.9.9.9:8000",)))
    assert (refusal.status, refusal.reason) == (503, "rejected-no-endpoints")
    assert world.refused(scheduler, chat(subset=("10.0.0.2:81",))).status == 503


def test_a_request_without_body_is_scored_too(world: World) -> None:
    gie_pods(world, (5, 0.2, ""), (0, 0.1, ""))
    assert world.pick(world.scheduler(HERMETIC), LLMRequest("r", method="GET", path="/v1/models")) == "pod-1"


def test_no_pods_is_a_503(world: World) -> None:
    world.publish()
    assert world.refused(world.scheduler(HERMETIC)).status == 503


@pytest.mark.parametrize("model", ["cheap", "dear"])
@pytest.mark.parametrize("state", ["ready", "saturated", "none"])
def test_shedding_tells_its_reason(world: World, model: str, state: str) -> None:
    """GIE#1082: 'no pods' and 'all saturated' must not look the same; what is not sheddable goes to the least bad."""
    if state != "none":
        queue = 9.0 if state == "saturated" else 0.0
        world.add("a", waiting=queue)
        world.add("b", waiting=queue + 1)
    world.cold["pools"] = [
        {"name": "default/pool", "models": [{"name": "x", "modelName": "cheap", "criticality": "Sheddable"}]}
    ]
    for row in world.rows.values():
        world.writer.endpoints.set(row, "pools", 1)
    world.publish()
    answer = world.scheduler().schedule(chat(model=model, pool="default/pool"), world.now_ns)
    if state == "none":
        assert not isinstance(answer, Decision)
        assert (answer.status, answer.reason) == (503, "rejected-no-endpoints")
    elif state == "saturated" and model == "cheap":
        assert not isinstance(answer, Decision)
        assert (answer.status, answer.reason, answer.retry_after_s) == (429, "rejected-saturated", 1)
    else:
        assert isinstance(answer, Decision)
        assert world.name_of(answer.endpoints[0]) == "a"


def test_picks_since_count_towards_saturation(world: World) -> None:
    world.add("a", waiting=3.0)
    world.cold["pools"] = [{"name": "default/pool", "objectives": [{"name": "batch", "priority": -1}]}]
    world.writer.endpoints.set(world.rows["a"], "pools", 1)
    world.publish()
    scheduler = world.scheduler()
    world.now_ns += MS
    for _ in range(2):
        assert world.pick(scheduler, chat(objective="batch", pool="default/pool")) == "a"
    assert world.refused(scheduler, chat(objective="batch", pool="default/pool")).status == 429
    assert world.pick(scheduler, chat(objective="no such objective", pool="default/pool")) == "a"


def test_nothing_left_by_load_is_a_429_and_by_role_a_503(world: World) -> None:
    """llm-d-router#2628: 429 although no decode endpoint exists."""
    world.add("prefill-only", labels={"llm-d.ai/role": "prefill"}, waiting=9.0)
    world.publish()
    by_load = HEAD + (
        "plugins:\n- type: utilization-filter\n  parameters: {conditions: [{metric: waiting-queue, maxValue: 2}]}\n"
        "schedulingProfiles:\n- name: default\n  plugins: [{pluginRef: utilization-filter}]\n"
    )
    by_role = HEAD + (
        "plugins:\n- type: decode-filter\nschedulingProfiles:\n- name: default\n  plugins: [{pluginRef: decode-filter}]\n"
    )
    assert world.refused(world.scheduler(by_load)).status == 429
    assert world.refused(world.scheduler(by_role, worker="w1")).status == 503


def test_pools_are_kept_apart(world: World) -> None:
    """istio#61594: two pools behind one picker; an empty one must not answer from the other."""
    for name, bit in (("a", 1), ("b", 2)):
        world.writer.endpoints.set(world.add(name), "pools", bit)
    world.cold["pools"] = [{"name": f"default/{name}"} for name in ("one", "two", "three")]
    world.publish()
    scheduler = world.scheduler()
    assert [world.pick(scheduler, chat(pool=f"default/{name}")) for name in ("one", "two", "one")] == ["a", "b", "a"]
    assert world.pick(scheduler, chat(pool="two")) == "b"
    assert world.refused(scheduler, chat(pool="default/three")).status == 503
    assert world.refused(scheduler, chat(pool="default/four")).status == 503
    assert scheduler.ready("default/one")
    assert not scheduler.ready("default/three")


def test_a_stream_without_a_pool_gets_no_endpoint_of_any_of_several(world: World) -> None:
    for name, bit in (("a", 1), ("b", 2)):
        world.writer.endpoints.set(world.add(name), "pools", bit)
    world.cold["pools"] = [{"name": "default/one"}]
    world.publish()
    scheduler = world.scheduler()
    assert world.pick(scheduler) in "ab"
    world.cold["pools"] = [{"name": "default/one"}, {"name": "default/two"}]
    world.publish()
    assert world.refused(scheduler) == refusals.AMBIGUOUS_POOL
    assert scheduler.fallback(chat(), world.now_ns) == refusals.AMBIGUOUS_POOL
    # The gateway's own list of endpoints says which pool it means.
    address = world.address("b")
    assert world.pick(scheduler, chat(subset=(address,))) == "b"


def test_fallbacks_reach_beyond_what_the_filters_kept(world: World) -> None:
    for name in "abcd":
        world.add(name, waiting=float("abcd".index(name)))
    world.publish()
    scheduler = world.scheduler((PROFILES / "sticky.yaml").read_text())
    prompt = chat("long " * 2000)
    first = scheduler.schedule(prompt, world.now_ns)
    assert isinstance(first, Decision)
    world.change("a", waiting=5.0)
    world.publish()
    again = scheduler.schedule(chat("long " * 2000), world.now_ns)
    assert isinstance(again, Decision)
    assert [world.name_of(address) for address in again.endpoints] == ["a", "b", "c"]


def test_no_endpoint_is_its_own_fallback(world: World) -> None:
    for name in "abc":
        world.add(name)
    world.publish()
    scheduler = world.scheduler()
    for _ in range(4):
        decision = scheduler.schedule(chat("long " * 2000), world.now_ns - MS)
        assert isinstance(decision, Decision)
        assert {world.name_of(address) for address in decision.endpoints} == set("abc")


def test_nobody_is_ever_only_a_fallback_of_a_filter_that_says_can(world: World) -> None:
    world.add("decode", labels={"llm-d.ai/role": "decode"})
    world.add("prefill", labels={"llm-d.ai/role": "prefill"})
    world.publish()
    config = HEAD + (
        "plugins:\n- type: decode-filter\n- type: max-score-picker\n  parameters: {maxNumOfEndpoints: 3}\n"
        "schedulingProfiles:\n- name: default\n  plugins: [{pluginRef: decode-filter}, {pluginRef: max-score-picker}]\n"
    )
    decision = world.scheduler(config).schedule(chat(), world.now_ns)
    assert isinstance(decision, Decision)
    assert [world.name_of(address) for address in decision.endpoints] == ["decode"]


def test_drain_between_two_picks_takes_an_endpoint_out_at_once(world: World) -> None:
    world.add("a")
    world.add("b", waiting=1.0)
    world.publish()
    scheduler = world.scheduler()
    assert world.pick(scheduler) == "a"
    world.change("a", flags=Flag.DRAIN)
    world.publish()
    assert world.pick(scheduler) == "b"


def test_the_deadline_fallback_uses_no_plugin(world: World) -> None:
    world.add("a", waiting=2.0)
    world.add("b", waiting=1.0)
    world.publish()
    scheduler = world.scheduler()
    decision = scheduler.fallback(chat(), world.now_ns)
    assert isinstance(decision, Decision)
    assert [world.name_of(address) for address in decision.endpoints] == ["b", "a"]
    assert scheduler._cell.in_flight(world.rows["b"], 1) == 1


def test_the_fallback_keeps_to_who_can_serve(world: World) -> None:
    """A late answer must not go to a prefill endpoint."""
    world.add("decode", labels={"llm-d.ai/role": "decode"}, waiting=5.0)
    world.add("prefill", labels={"llm-d.ai/role": "prefill"})
    world.publish()
    pd = world.scheduler((PROFILES / "pd.yaml").read_text())
    decision = pd.fallback(chat(), world.now_ns)
    assert isinstance(decision, Decision)
    assert [world.name_of(address) for address in decision.endpoints] == ["decode"]
    world.change("decode", flags=Flag.DRAIN)
    world.publish()
    refusal = pd.fallback(chat(), world.now_ns)
    assert not isinstance(refusal, Decision)
    assert refusal.status == 503


def test_the_fallback_leaves_an_adapter_where_it_is(world: World) -> None:
    gie_pods(world, (5, 0.2, "foo"), (0, 0.1, ""), (1, 0.1, ""))
    scheduler = world.scheduler((PROFILES / "lora.yaml").read_text())
    decision = scheduler.fallback(chat(model="foo"), world.now_ns)
    assert isinstance(decision, Decision)
    assert [world.name_of(address) for address in decision.endpoints] == ["pod-0", "pod-1", "pod-2"]


def test_a_row_that_changes_hands_between_two_looks_does_not_pass_its_prefixes_on(world: World) -> None:
    world.add("old")
    world.publish()
    scheduler = world.scheduler()
    prompt = "shared " * 2000
    assert world.pick(scheduler, chat(prompt)) == "old"
    row = world.rows.pop("old")
    world.writer.remove_endpoint("old")
    world.add("new")
    assert world.rows["new"] == row
    world.publish()
    view = scheduler._latest.view(world.now_ns)
    assert view is not None
    assert scheduler._prefixes is not None
    lookup = scheduler._prefixes.look_up(chat(prompt), "m", view)
    assert lookup is not None
    assert row not in lookup.depths


def test_a_reused_row_does_not_inherit_load_or_prefixes(world: World) -> None:
    world.add("old")
    world.add("other", waiting=3.0)
    world.publish()
    scheduler = world.scheduler((PROFILES / "sticky.yaml").read_text())
    prompt = "shared " * 2000
    assert world.pick(scheduler, chat(prompt)) == "old"
    row = world.rows.pop("old")
    world.writer.remove_endpoint("old")
    del world.cold["endpoints"][row]
    world.publish()
    assert world.pick(scheduler, chat(prompt)) == "other"
    world.add("new", waiting=2.0)
    assert world.rows["new"] == row
    world.publish()
    matched = scheduler._prefixes
    assert matched is not None
    view = scheduler._latest.view(world.now_ns)
    assert view is not None
    lookup = matched.look_up(chat(prompt), "m", view)
    assert lookup is not None
    assert lookup.depths == {world.rows["other"]: lookup.blocks}

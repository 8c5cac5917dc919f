"""Requests that run more than one profile, or one of several: prefill, encode, ranks, profiles by header."""

from __future__ import annotations

from unit.scheduling.world import HEAD, LONG, PROFILES, World, chat
from zerohop_picker.scheduling_contract import Decision, Outcome
from zerohop_snapshot import PeerCells


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

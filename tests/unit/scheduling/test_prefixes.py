"""Prefixes: the same beginning finds the endpoint that has it, between workers and over restarts."""

from __future__ import annotations

import json
import tracemalloc

from unit.scheduling.world import LONG, World, chat
from zerohop_picker.state.names import Names
from zerohop_picker.state.prefixes import PrefixSettings, domain
from zerohop_snapshot.prefix import PrefixDirectory


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

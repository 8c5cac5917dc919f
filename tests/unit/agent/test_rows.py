"""From readings to the columns of a published snapshot."""

from __future__ import annotations

import math
import time

import pytest

from zerohop_agent.signals import Signals

from .conftest import MS, SECOND, Bench, Reading, endpoint

NOW = time.monotonic_ns()


async def test_a_reading_reaches_the_snapshot(bench: Bench) -> None:
    bench.apply(endpoint(name="a", pools=("ns/p",), labels={"zone": "1"}, gpus=("GPU-1",), role="decode", weight=2.0))
    bench.readers["10.0.0.1:8000"].say(
        NOW,
        waiting=3,
        running=7,
        kv_cache_usage=0.25,
        block_size=16,
        num_blocks=1000,
        kv_capacity_tokens=16000,
        max_model_len=8192,
        prompt_tokens=100,
        generation_tokens=50,
        prefix_queries=40,
        prefix_hits=10,
        preemptions=2,
        steps=9,
        models=("base", "lora-1"),
        adapters=("lora-1",),
        lora_max=4,
    )
    view = bench.publish(NOW + MS)
    assert [view.get(name) for name in ("waiting", "running", "kv_cache_usage", "observed_ns")] == [3, 7, 0.25, NOW]
    assert [view.get(name) for name in ("prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits")] == [
        100,
        50,
        40,
        10,
    ]
    assert [view.get(name) for name in ("preemptions", "steps", "lora_max", "kv_capacity_tokens")] == [2, 9, 4, 16000]
    assert [view.get(name) for name in ("block_size", "max_model_len", "scrape_interval_s")] == pytest.approx(
        [16, 8192, 0.05]
    )
    assert view.get("progress_ns") == view.get("detail_observed_ns") == NOW
    assert view.flags() == set()
    facts = view.cold["endpoints"][view.row("10.0.0.1:8000")]
    assert facts == {
        "address": "10.0.0.1:8000",
        "name": "a",
        "uid": "",
        "generation": 1,
        "pools": ["ns/p"],
        "labels": {"zone": "1"},
        "models": ["base", "lora-1"],
        "adapters": ["lora-1"],
        "engine": "vllm",
        "role": "decode",
        "gpus": ["GPU-1"],
        "block_size": 16,
        "num_blocks": 1000,
        "max_model_len": 8192,
        "weight": 2.0,
    }
    assert view.cold["node"] == "node-1"
    assert view.get("pools") == 1 << [pool["name"] for pool in view.cold["pools"]].index("ns/p")


async def test_what_is_not_on_the_page_is_unknown_and_never_zero(bench: Bench) -> None:
    bench.apply(endpoint())
    bench.readers["10.0.0.1:8000"].say(NOW, running=1, waiting=0, kv_cache_usage=0.5, generation_tokens=1)
    view = bench.publish(NOW)
    assert view.get("waiting") == 0
    assert math.isnan(view.get("prompt_tokens"))
    assert math.isnan(view.get("lora_count"))
    assert math.isnan(view.get("max_model_len"))
    # A page that lost a field takes the value with it.
    bench.readers["10.0.0.1:8000"].say(NOW + SECOND, waiting=2)
    view = bench.publish(NOW + SECOND)
    assert view.get("waiting") == 2
    for name in ("running", "kv_cache_usage", "generation_tokens"):
        assert math.isnan(view.get(name)), name


async def test_counters_and_latencies_come_as_rates_and_means(bench: Bench) -> None:
    bench.apply(endpoint())
    for tick in range(41):
        bench.readers["10.0.0.1:8000"].say(
            NOW + tick * 50 * MS,
            generation_tokens=tick * 10,
            prompt_tokens=tick,
            ttft_sum_s=tick * 0.1,
            ttft_count=tick,
        )
    view = bench.publish(NOW + 2 * SECOND)
    assert view.get("generation_tokens_rate") == pytest.approx(200)
    assert view.get("prompt_tokens_rate") == pytest.approx(20)
    assert view.get("ttft_mean_s") == pytest.approx(0.1)
    assert math.isnan(view.get("itl_mean_s"))


async def test_adapters_are_bits_of_the_cold_names(bench: Bench) -> None:
    bench.apply(endpoint(), endpoint("10.0.0.2:8000"))
    # vLLM since 0.12 names the same adapters as running and waiting (llm-d-router#2605): the union counts.
    both = {"lora_running": frozenset({"sql", "chat"}), "lora_waiting": frozenset({"sql", "chat"}), "lora_max": 2}
    bench.readers["10.0.0.1:8000"].say(NOW, **both)
    bench.readers["10.0.0.2:8000"].say(NOW, lora_running=frozenset({"chat"}), lora_waiting=frozenset())
    view = bench.publish(NOW)
    assert view.adapters() == view.adapters(kind="waiting") == {"sql", "chat"}
    assert view.adapters("10.0.0.2:8000") == {"chat"}
    assert view.get("lora_count") == 2
    bench.readers["10.0.0.1:8000"].say(NOW + SECOND, lora_running=frozenset(), lora_waiting=frozenset())
    view = bench.publish(NOW + SECOND)
    assert view.adapters() == set()
    assert view.get("lora_count") == 0
    bench.readers["10.0.0.1:8000"].say(NOW + 2 * SECOND, running=1)
    assert math.isnan(bench.publish(NOW + 2 * SECOND).get("lora_count"))


async def test_the_engines_own_cell_goes_before_the_scrape_until_it_is_quiet(bench: Bench) -> None:
    bench.apply(endpoint())
    reader = bench.readers["10.0.0.1:8000"]
    reader.say(NOW, running=1, waiting=0, kv_cache_usage=0.1, max_model_len=4096, models=("m",))
    bench.cells.readings["10.0.0.1:8000"] = Reading(Signals(running=2, waiting=1, kv_cache_usage=0.2), NOW + 30 * MS)
    view = bench.publish(NOW + 31 * MS)
    assert [view.get("running"), view.get("observed_ns"), view.flags()] == [2, NOW + 30 * MS, {"plugin"}]
    assert bench.runtime.plugin_live
    # The page is read seldom meanwhile.
    assert reader.is_relaxed()
    # The cell does not say how long a context may be; the page does.
    assert view.get("max_model_len") == 4096
    # An answer that was asked for before the cell's last step is older than it.
    reader.say(NOW + 20 * MS, running=1, waiting=0)
    assert bench.publish(NOW + 35 * MS).get("running") == 2
    # The engine is idle or dead and writes no more: after one interval the page is read as ever, and takes over.
    bench.publish(NOW + 79 * MS)
    assert reader.is_relaxed()
    bench.publish(NOW + 80 * MS)
    assert not reader.is_relaxed()
    reader.say(NOW + 81 * MS, running=0, waiting=0)
    view = bench.publish(NOW + 82 * MS)
    assert [view.get("running"), view.flags()] == [0, set()]
    bench.cells.readings.clear()
    bench.publish(NOW + 83 * MS)
    assert not bench.runtime.plugin_live


async def test_an_older_reading_changes_nothing(bench: Bench) -> None:
    bench.apply(endpoint())
    bench.readers["10.0.0.1:8000"].say(NOW, running=5)
    bench.readers["10.0.0.1:8000"].say(NOW - MS, running=9)
    assert bench.publish(NOW).get("running") == 5

"""The derived bits, as a picker sees them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest

from zerohop_agent.condition import GpuCondition
from zerohop_agent.latches import Bounds
from zerohop_agent.signals import Signals
from zerohop_snapshot.layout import DrainReason, GpuFlag, SlowdownReason, UnhealthyReason

from .conftest import MS, SECOND, Bench, Reading, endpoint

NOW = time.monotonic_ns()
ADDRESS = "10.0.0.1:8000"


@pytest.fixture
async def server(bench: Bench) -> Bench:
    bench.apply(endpoint())
    return bench


async def test_never_read_is_unhealthy_and_stale(server: Bench) -> None:
    view = server.publish(NOW)
    assert view.flags() == {"unhealthy", "stale"}
    assert view.reasons()[1] == UnhealthyReason.NEVER_SCRAPED
    assert view.get("observed_ns") == 0


@pytest.mark.parametrize("reason", [UnhealthyReason.REFUSED, UnhealthyReason.DEAD])
async def test_a_refused_connection_is_unhealthy_at_once_and_heals_with_a_good_reading(
    server: Bench, reason: UnhealthyReason
) -> None:
    server.readers[ADDRESS].say(NOW, running=1)
    server.readers[ADDRESS].fail(reason)
    view = server.publish(NOW)
    assert view.flags() == {"unhealthy"}
    assert view.reasons()[1] == reason
    assert view.get("running") == 1
    server.readers[ADDRESS].say(NOW + MS, running=0)
    view = server.publish(NOW + MS)
    assert view.flags() == set()
    assert view.reasons()[1] == UnhealthyReason.NONE


@pytest.mark.parametrize("reason", [UnhealthyReason.TIMEOUT, UnhealthyReason.RESET])
async def test_timeouts_and_resets_count_only_when_they_repeat(server: Bench, reason: UnhealthyReason) -> None:
    server.readers[ADDRESS].say(NOW, running=1)
    for expected in (set(), set(), {"unhealthy"}):
        server.readers[ADDRESS].fail(reason)
        assert server.publish(NOW).flags() == expected
    server.readers[ADDRESS].say(NOW + MS, running=1)
    server.readers[ADDRESS].fail(reason)
    assert server.publish(NOW + MS).flags() == set()


@pytest.mark.parametrize(
    "reason",
    [
        UnhealthyReason.HTTP_STATUS,
        UnhealthyReason.NOT_METRICS,
        UnhealthyReason.ENGINE_UNKNOWN,
        UnhealthyReason.TOO_LARGE,
    ],
)
async def test_a_server_with_a_page_that_says_nothing_may_well_serve(server: Bench, reason: UnhealthyReason) -> None:
    for _ in range(9):
        server.readers[ADDRESS].fail(reason)
    view = server.publish(NOW)
    assert view.flags() == {"stale"}
    assert view.reasons()[1] == reason
    assert math.isnan(view.get("waiting"))


async def test_stale_comes_with_age_and_goes_with_a_reading(make_bench: Callable[..., Bench]) -> None:
    server = make_bench(bounds=Bounds(stale_ns=300 * MS))
    server.apply(endpoint())
    server.readers[ADDRESS].say(NOW, running=1)
    assert server.publish(NOW + 299 * MS).flags() == set()
    assert server.publish(NOW + 300 * MS).flags() == {"stale"}
    server.readers[ADDRESS].say(NOW + 400 * MS, running=1)
    assert server.publish(NOW + 401 * MS).flags() == set()
    await server.runtime.close()


async def test_a_server_read_slowly_is_stale_after_three_of_its_intervals(make_bench: Callable[..., Bench]) -> None:
    server = make_bench(bounds=Bounds(stale_ns=300 * MS))
    server.apply(endpoint(scrape_interval_ns=SECOND))
    server.readers[ADDRESS].interval_ns = SECOND
    server.readers[ADDRESS].say(NOW, running=1)
    assert server.publish(NOW + 2999 * MS).flags() == set()
    assert server.publish(NOW + 3000 * MS).flags() == {"stale"}
    await server.runtime.close()


async def test_values_that_nobody_confirms_for_long_become_unknown(server: Bench) -> None:
    server.readers[ADDRESS].say(NOW, running=1, lora_running=frozenset({"a"}), max_model_len=10)
    assert server.publish(NOW + 19 * SECOND).get("running") == 1
    view = server.publish(NOW + 21 * SECOND)
    assert math.isnan(view.get("running"))
    assert math.isnan(view.get("max_model_len"))
    assert view.get("observed_ns") == 0
    assert view.adapters() == set()
    # The adapter's slot is free again.
    assert server.runtime.adapters.slots(["a"])


async def test_sleeping(server: Bench) -> None:
    server.readers[ADDRESS].say(NOW, running=0, sleeping=True)
    assert server.publish(NOW).flags() == {"sleeping"}
    server.readers[ADDRESS].say(NOW + SECOND, running=0, sleeping=False)
    assert server.publish(NOW + SECOND).flags() == set()


async def test_stuck_is_work_without_token_progress_and_clears_itself(server: Bench) -> None:
    """The gauges of vLLM stay high for ever after a mass abort (vllm#29928)."""
    reader = server.readers[ADDRESS]
    reader.say(NOW, running=9, waiting=3, generation_tokens=100, prompt_tokens=10)
    for second in range(1, 15):
        reader.say(NOW + second * SECOND, running=9, waiting=3, generation_tokens=100, prompt_tokens=10)
        assert server.publish(NOW + second * SECOND).flags() == set(), second
    reader.say(NOW + 15 * SECOND, running=9, waiting=3, generation_tokens=100, prompt_tokens=10)
    view = server.publish(NOW + 15 * SECOND)
    assert view.flags() == {"stuck"}
    assert view.get("progress_ns") == NOW
    reader.say(NOW + 16 * SECOND, running=9, waiting=3, generation_tokens=101, prompt_tokens=10)
    assert server.publish(NOW + 16 * SECOND).flags() == set()


async def test_a_stuck_endpoint_is_tried_again_now_and_then(server: Bench) -> None:
    reader = server.readers[ADDRESS]
    frozen = {"running": 9, "waiting": 3, "kv_cache_usage": 0.9, "generation_tokens": 100}
    tries: list[float] = []
    loads: list[float] = []
    for tick in range(20 * 240):
        at_ns = NOW + tick * 50 * MS
        reader.say(at_ns, **frozen)
        view = server.publish(at_ns)
        if tick >= 15 * 20 and view.flags() != {"stuck"}:
            assert view.flags() == set()
            tries.append(tick / 20)
            loads.append(view.get("waiting"))
    # Stuck after 15 s; tried after 30 s more, and 60 and 120 s later, for three readings each.
    assert tries == [45.0, 45.05, 45.1, 105.15, 105.2, 105.25, 225.3, 225.35, 225.4]
    # On trial its load counts as empty, or nobody would ever try it.
    assert loads == [3, 0, 0] * 3
    # New work came, and the engine was fine all along.
    reader.say(NOW + 240 * SECOND, running=1, waiting=0, kv_cache_usage=0.1, generation_tokens=105)
    view = server.publish(NOW + 240 * SECOND)
    assert (view.flags(), view.get("running")) == (set(), 1)
    assert server.runtime.rows[ADDRESS].stuck.trials == 0


async def test_a_queue_that_nothing_comes_out_of_is_stuck_too(server: Bench) -> None:
    """Running 0, waiting 6, healthy: a livelock (vllm-metal#479)."""
    for second in range(16):
        server.readers[ADDRESS].say(NOW + second * SECOND, running=0, waiting=6, generation_tokens=1)
    assert server.publish(NOW + 15 * SECOND).flags() == {"stuck"}
    server.readers[ADDRESS].say(NOW + 16 * SECOND, running=0, waiting=0, generation_tokens=1)
    assert server.publish(NOW + 16 * SECOND).flags() == set()


async def test_idle_time_does_not_count_as_stuck(server: Bench) -> None:
    reader = server.readers[ADDRESS]
    for second in range(60):
        reader.say(NOW + second * SECOND, running=0, waiting=0, generation_tokens=1)
    reader.say(NOW + 60 * SECOND, running=1, waiting=0, generation_tokens=1)
    assert server.publish(NOW + 60 * SECOND).flags() == set()


async def test_without_counters_or_asleep_nothing_is_stuck(server: Bench) -> None:
    for second in range(30):
        server.readers[ADDRESS].say(NOW + second * SECOND, running=4)
    assert server.publish(NOW + 29 * SECOND).flags() == set()
    for second in range(30, 60):
        server.readers[ADDRESS].say(NOW + second * SECOND, running=4, generation_tokens=1, sleeping=True)
    assert server.publish(NOW + 59 * SECOND).flags() == {"sleeping"}


async def test_overloaded(make_bench: Callable[..., Bench]) -> None:
    server = make_bench(bounds=Bounds(overloaded_waiting=10, overloaded_kv_cache_ratio=0.9))
    server.apply(endpoint())
    reader = server.readers[ADDRESS]
    cases = [
        ({"waiting": 9, "kv_cache_usage": 0.5}, set()),
        ({"waiting": 10, "kv_cache_usage": 0.5}, {"overloaded"}),
        ({"waiting": 1, "kv_cache_usage": 0.9}, {"overloaded"}),
        # A full cache with nobody waiting is a server that is used well.
        ({"waiting": 0, "kv_cache_usage": 0.99}, set()),
        ({}, set()),
    ]
    for number, (values, expected) in enumerate(cases):
        reader.say(NOW + number * MS, **values)
        assert server.publish(NOW + number * MS).flags() == expected, values
    await server.runtime.close()


async def test_drain_by_the_source(server: Bench) -> None:
    server.readers[ADDRESS].say(NOW, running=1)
    server.apply(endpoint(draining=True, drain_reason=DrainReason.POD_TERMINATING))
    view = server.publish(NOW)
    assert (view.flags(), view.reasons()[0]) == ({"drain"}, DrainReason.POD_TERMINATING)
    server.apply(endpoint(draining=True))
    assert server.publish(NOW).reasons()[0] == DrainReason.CONFIG
    server.apply(endpoint())
    assert server.publish(NOW).flags() == set()


async def test_gpus_drain_and_slow_the_endpoints_that_use_them(bench: Bench) -> None:
    bench.apply(endpoint(gpus=("GPU-1", "GPU-2")), endpoint("10.0.0.2:8000", gpus=("GPU-2",)))
    for reader in bench.readers.values():
        reader.say(NOW, running=0)
    gpus = bench.runtime.view
    gpus.set_gpus([{"uuid": "GPU-1", "name": "H100", "index": 0}, {"uuid": "GPU-2", "name": "H100", "index": 1}])
    for row, (utilization, used) in enumerate([(0.5, 30.0), (1.0, 60.0)]):
        gpus.gpus.set(row, "flags", GpuFlag.USED)
        gpus.gpus.set(row, "utilization", utilization)
        gpus.gpus.set(row, "memory_used_bytes", used)
        gpus.gpus.set(row, "memory_total_bytes", 80.0)
    slow = GpuCondition(slowdown=2.0, slowdown_reason=SlowdownReason.THERMAL)
    gpus.set_gpu_conditions({"GPU-1": GpuCondition(drain_reason=DrainReason.XID), "GPU-2": slow})
    view = bench.publish(NOW)
    assert view.flags() == {"drain", "slowed"}
    assert view.reasons()[0] == DrainReason.XID
    assert view.get("slowdown") == 2.0
    assert view.get("gpu_utilization") == pytest.approx(0.75)
    assert view.get("gpu_memory") == pytest.approx(0.75)
    assert view.flags("10.0.0.2:8000") == {"slowed"}
    assert view.reasons("10.0.0.2:8000")[2] == SlowdownReason.THERMAL
    assert [gpu["uuid"] for gpu in view.cold["gpus"]] == ["GPU-1", "GPU-2"]
    # Of two slow boards the slower one sets the pace, whichever comes first.
    slower = GpuCondition(slowdown=3.0, slowdown_reason=SlowdownReason.POWER_BRAKE)
    for pair in ((slow, slower), (slower, slow)):
        gpus.set_gpu_conditions(dict(zip(("GPU-1", "GPU-2"), pair, strict=True)))
        view = bench.publish(NOW)
        assert (view.get("slowdown"), view.reasons()[2]) == (3.0, SlowdownReason.POWER_BRAKE)
    gpus.set_gpu_conditions({"GPU-1": GpuCondition(), "GPU-2": GpuCondition(slowdown=1.0)})
    view = bench.publish(NOW)
    assert view.flags() == view.flags("10.0.0.2:8000") == set()
    assert view.get("slowdown") == 1.0


async def test_a_fresh_cell_outweighs_timeouts_of_the_page(server: Bench) -> None:
    server.readers[ADDRESS].say(NOW, running=1)
    for _ in range(5):
        server.readers[ADDRESS].fail(UnhealthyReason.TIMEOUT)
    assert "unhealthy" in server.publish(NOW).flags()
    server.cells.readings[ADDRESS] = Reading(Signals(running=3), NOW + MS)
    assert server.publish(NOW + MS).flags() == {"plugin"}
    assert "unhealthy" in server.publish(NOW + 5 * SECOND).flags()

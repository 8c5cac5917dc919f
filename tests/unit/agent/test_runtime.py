"""Endpoints come, change and go; rows stay whose they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.waiting import eventually_async
from zerohop_agent.endpoints import EndpointSet, PoolSpec
from zerohop_agent.latches import Bounds
from zerohop_agent.runtime import Runtime
from zerohop_snapshot.reader import SnapshotReader
from zerohop_snapshot.writer import SnapshotWriter

from .conftest import MS, SECOND, Bench, View, endpoint

NOW = time.monotonic_ns()


async def test_endpoints_are_added_changed_and_removed(bench: Bench) -> None:
    bench.apply(endpoint("10.0.0.1:1"), endpoint("10.0.0.2:1"))
    rows = {address: bench.publish(NOW).row(address) for address in ("10.0.0.1:1", "10.0.0.2:1")}
    bench.readers["10.0.0.2:1"].say(NOW, running=2)
    second = bench.readers["10.0.0.2:1"]
    await asyncio.sleep(0)
    bench.apply(endpoint("10.0.0.2:1", labels={"a": "b"}), endpoint("10.0.0.3:1"))
    view = bench.publish(NOW)
    # Kept: the same row, reader and values; a label is no reason to read it anew.
    assert view.row("10.0.0.2:1") == rows["10.0.0.2:1"]
    assert view.get("running", "10.0.0.2:1") == 2
    assert bench.readers["10.0.0.2:1"] is second
    assert view.cold["endpoints"][rows["10.0.0.2:1"]]["labels"] == {"a": "b"}
    # Removed and added: the row may be used again, with a new generation.
    assert view.row("10.0.0.3:1") == rows["10.0.0.1:1"]
    assert view.get("generation", "10.0.0.3:1") == 2
    assert "10.0.0.1:1" not in [facts["address"] for facts in view.cold["endpoints"].values()]
    await eventually_async(lambda: bench.readers["10.0.0.1:1"].cancelled)


async def test_a_changed_way_of_reading_starts_a_new_reader(bench: Bench) -> None:
    bench.apply(endpoint())
    first = bench.readers["10.0.0.1:8000"]
    await asyncio.sleep(0)
    bench.apply(endpoint(metrics_path="/prometheus/metrics"))
    assert bench.readers["10.0.0.1:8000"] is not first
    await eventually_async(lambda: first.cancelled)
    # What the old reader still had in hand is dropped.
    first.say(NOW, running=5)
    assert bench.publish(NOW).get("observed_ns") == 0


async def test_a_pod_that_moved_to_another_address_starts_unknown(bench: Bench) -> None:
    bench.apply(endpoint(key="uid-1"))
    bench.readers["uid-1"].say(NOW, running=5, generation_tokens=9)
    bench.apply(endpoint("10.0.0.9:8000", key="uid-1"))
    view = bench.publish(NOW)
    assert view.get("observed_ns", "10.0.0.9:8000") == 0
    assert view.flags("10.0.0.9:8000") == {"unhealthy", "stale"}


async def test_an_answer_that_comes_after_the_endpoint_has_gone_is_dropped(bench: Bench) -> None:
    bench.apply(endpoint())
    reader = bench.readers["10.0.0.1:8000"]
    bench.apply()
    reader.say(NOW, running=5)
    reader.fail(0)  # type: ignore[arg-type]
    assert bench.publish(NOW).cold["endpoints"] == {}


async def test_a_full_table_refuses_and_makes_room_when_one_leaves(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(capacity=8)
    many = [endpoint(f"10.0.0.{number}:1") for number in range(10)]
    bench.apply(*many)
    view = bench.publish(NOW)
    assert len(view.cold["endpoints"]) == 8
    assert view.snapshot.refusals == 2
    assert bench.runtime.refused_count == 2
    bench.apply(*many, source="file")
    assert bench.publish(NOW).snapshot.refusals == 2  # asking again is no new refusal
    bench.apply(*many[1:], source="file")
    bench.apply(*many[1:], source="flags")
    view = bench.publish(NOW)
    assert len(view.cold["endpoints"]) == 8
    assert view.row("10.0.0.8:1") == 0
    await bench.runtime.close()


async def test_one_reader_that_breaks_leaves_the_others_and_starts_again(bench: Bench) -> None:
    bench.apply(endpoint("10.0.0.1:1"), endpoint("10.0.0.2:1"))
    calls = []

    async def broken() -> None:
        calls.append(1)
        raise RuntimeError("a fault of ours")

    bench.readers["10.0.0.1:1"].run = broken  # type: ignore[method-assign]
    await eventually_async(lambda: len(calls) >= 2, timeout=5)
    bench.readers["10.0.0.2:1"].say(NOW, running=1)
    assert bench.publish(NOW).get("running", "10.0.0.2:1") == 1


async def test_pools_keep_their_bits_in_step_with_the_cold_map(bench: Bench) -> None:
    first, second = PoolSpec("ns/a", "http", objectives=({"name": "o", "priority": 1},)), PoolSpec("ns/b", "h2c")
    bench.apply(
        endpoint("10.0.0.1:1", pools=("ns/a",)), endpoint("10.0.0.2:1", pools=("ns/a", "ns/b")), pools=(first, second)
    )

    def pools(view: View, address: str) -> set[str]:
        word = view.get("pools", address)
        return {pool["name"] for bit, pool in enumerate(view.cold["pools"]) if word >> bit & 1}

    view = bench.publish(NOW)
    assert (pools(view, "10.0.0.1:1"), pools(view, "10.0.0.2:1")) == ({"ns/a"}, {"ns/a", "ns/b"})
    assert view.cold["pools"][0]["objectives"] == [{"name": "o", "priority": 1}]
    bench.apply(endpoint("10.0.0.2:1", pools=("ns/b",)), pools=(second,))
    view = bench.publish(NOW)
    assert pools(view, "10.0.0.2:1") == {"ns/b"}
    assert [pool["name"] for pool in view.cold["pools"]] == ["ns/b"]


async def test_endpoints_of_other_nodes_carry_their_origin(bench: Bench) -> None:
    bench.apply(endpoint("10.0.0.1:1"), endpoint("10.0.1.1:1", origin="node-2"))
    view = bench.publish(NOW)
    assert view.get("origin", "10.0.0.1:1") == 0
    assert view.cold["origins"][view.get("origin", "10.0.1.1:1")] == "node-2"


def restarted(shm_dir: Path, readers: dict[str, Any], **options: Any) -> tuple[Runtime, SnapshotWriter]:
    from .conftest import ScriptedReader

    writer = SnapshotWriter(shm_dir, endpoint_capacity=8)

    def make(spec: Any, on_signals: Any, on_failure: Any) -> ScriptedReader:
        made = ScriptedReader(spec, on_signals, on_failure)
        readers[spec.key] = made
        return made

    return Runtime(writer, make, node="node-1", bounds=Bounds(), scrape_interval_ns=50 * MS, **options), writer


async def test_a_restarted_agent_goes_on_with_rows_values_and_sequence(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    first.apply(
        endpoint("10.0.0.1:1", pools=("p",)), endpoint("10.0.0.2:1", pools=("q",)), endpoint("10.0.0.3:1", pools=("p",))
    )
    for number, scripted in enumerate(first.readers.values()):
        scripted.say(NOW, running=number, lora_running=frozenset({f"lora-{number}"}))
    before = first.publish(NOW)
    await first.runtime.close()
    first.writer.close()

    readers: dict[str, Any] = {}
    expected = frozenset({"flags", "kubernetes"})
    runtime, writer = restarted(tmp_path, readers, expected_sources=expected)
    reader = SnapshotReader(tmp_path)

    def view(now_ns: int = NOW + 10 * MS) -> View:
        runtime.prepare(now_ns)
        writer.publish(now_ns)
        snapshot = reader.read()
        assert snapshot is not None
        return View(snapshot)

    # One source has spoken, the other has not listed yet: nobody is taken away, values stand with their age.
    runtime.apply("flags", EndpointSet((endpoint("10.0.0.3:1", pools=("p",)),)))
    after = view()
    assert after.snapshot.sequence == before.snapshot.sequence + 1
    for number, address in enumerate(("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1")):
        assert after.row(address) == before.row(address)
        assert after.get("generation", address) == before.get("generation", address)
        assert after.get("running", address) == number
        assert after.adapters(address) == {f"lora-{number}"}
        assert after.flags(address) == set(), address
    word = after.get("pools", "10.0.0.2:1")
    assert [pool["name"] for bit, pool in enumerate(after.cold["pools"]) if word >> bit & 1] == ["q"]
    # Nobody reads them meanwhile, so in time they are stale.
    assert view(NOW + 3 * SECOND).flags("10.0.0.1:1") == {"stale"}
    # The other source speaks, and knows one of them no more.
    runtime.apply("kubernetes", EndpointSet((endpoint("10.0.0.1:1", pools=("p",)),)))
    after = view()
    assert {facts["address"] for facts in after.cold["endpoints"].values()} == {"10.0.0.1:1", "10.0.0.3:1"}
    assert [pool["name"] for pool in after.cold["pools"]] == ["p"]
    assert after.get("running", "10.0.0.1:1") == 0
    assert after.get("pools", "10.0.0.1:1") == 1
    # The first reading of the new run takes the adapters of the old one off the row.
    readers["10.0.0.3:1"].say(NOW + SECOND, running=4)
    after = view()
    assert after.get("running", "10.0.0.3:1") == 4
    assert after.adapters("10.0.0.3:1") == set()
    await runtime.close()
    writer.close()
    reader.close()


async def test_a_restart_with_a_full_table_makes_room_for_new_endpoints(tmp_path: Path) -> None:
    first = Bench(tmp_path, capacity=8)
    first.apply(*[endpoint(f"10.0.0.{number}:1") for number in range(8)])
    first.publish(NOW)
    await first.runtime.close()
    first.writer.close()
    runtime, writer = restarted(tmp_path, {}, expected_sources=frozenset({"flags"}))
    runtime.apply("flags", EndpointSet(tuple(endpoint(f"10.0.1.{number}:1") for number in range(8))))
    assert len(runtime.rows) == 8
    assert runtime.refused_count == 0
    await runtime.close()
    writer.close()


async def test_a_server_that_says_too_much_keeps_no_other_endpoint_out(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.apply(endpoint("10.0.0.1:1"))
    many = tuple(f"{number:0500}" for number in range(1024))
    bench.readers["10.0.0.1:1"].say(NOW, running=1, models=many, adapters=many)
    bench.publish(NOW)
    bench.apply(endpoint("10.0.0.1:1", models=("mine",)), endpoint("10.0.0.2:1"))
    view = bench.publish(NOW + MS)
    assert view.get("running", "10.0.0.1:1") == 1
    assert view.cold["endpoints"][view.row("10.0.0.1:1")]["models"] == ["mine"]
    assert view.row("10.0.0.2:1") != view.row("10.0.0.1:1")
    told = [record.getMessage() for record in caplog.records if "cold map" in record.getMessage()]
    assert told == ["the cold map does not fit; served models are left out"]
    bench.readers["10.0.0.1:1"].say(NOW + SECOND, running=1, models=("few",))
    view = bench.publish(NOW + SECOND)
    assert view.cold["endpoints"][view.row("10.0.0.1:1")]["models"] == ["mine", "few"]


@pytest.mark.parametrize("blob", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x81\xa1v\x02"])
def test_a_cold_map_that_cannot_be_read_is_no_obstacle(blob: bytes) -> None:
    from zerohop_agent.cold_map import ColdMap

    assert ColdMap("n", blob).inherited_adapters == []

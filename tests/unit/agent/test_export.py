"""The metrics page: valid, complete, without invented values, and served without holding up a publish."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from support.processes import free_port
from support.waiting import eventually_async
from zerohop_agent.collectors.base import CollectorStats
from zerohop_agent.condition import GpuCondition
from zerohop_agent.endpoints_file import EndpointsFileState
from zerohop_agent.export.agent_metrics import AgentMetrics
from zerohop_agent.export.families import DERIVED, ENDPOINT, GPU, HOST
from zerohop_agent.export.page import SnapshotPage
from zerohop_agent.export.server import MetricsServer
from zerohop_agent.publisher import Publisher
from zerohop_process.address import Address
from zerohop_process.errors import ConfigError
from zerohop_snapshot import PickerCell
from zerohop_snapshot.layout import DrainReason, GpuFlag, UnhealthyReason

from .conftest import MS, Bench, endpoint

ROOT = Path(__file__).parents[3]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(page: str) -> Samples:
    """Every sample of a page by name and labels, read by Prometheus' own parser; each series may stand once."""
    found: Samples = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def names(page: str) -> set[str]:
    return {name for name, _ in samples(page)}


def fill(bench: Bench, endpoints: int, gpus: int, now_ns: int) -> None:
    """Every value of every endpoint and GPU known."""
    bench.apply(*[endpoint(f"10.0.{n // 200}.{n % 200}:8000", name=f"vllm-{n}") for n in range(endpoints)])
    for reader in bench.readers.values():
        for tick in range(2):
            reader.say(
                now_ns - (1 - tick) * 500 * MS, waiting=1, running=2, kv_cache_usage=0.5, block_size=16, num_blocks=10,
                kv_capacity_tokens=160, max_model_len=4096, prefix_queries=10, prefix_hits=5, prompt_tokens=1e12 + tick,
                generation_tokens=7 + tick, preemptions=0, steps=3 + tick, ttft_sum_s=1 + tick, ttft_count=1 + tick,
                itl_sum_s=1 + tick, itl_count=1 + tick, lora_running=frozenset(), lora_waiting=frozenset(), lora_max=4,
            )  # fmt: skip
    view = bench.runtime.view
    view.set_gpus([{"uuid": f"GPU-{n}", "name": "H100", "index": n, "bus_id": f"0000:{n}"} for n in range(gpus)])
    for row in range(gpus):
        for family in GPU:
            view.gpus.set(row, family.column, 1)
        view.gpus.set(row, "flags", GpuFlag.USED | GpuFlag.THROTTLED)
        view.gpus.set(row, "observed_ns", now_ns)
        view.gpus.set(row, "slow_observed_ns", now_ns)
        view.gpus.set(row, "clock_event_reasons", 0x40)
        view.gpus.set(row, "xid_last", 79)
    for family in HOST:
        view.host.set(family.column, 1)
    view.host.set("observed_ns", now_ns)


async def test_every_family_is_there_when_everything_is_known(bench: Bench) -> None:
    now_ns = time.monotonic_ns()
    fill(bench, 2, 2, now_ns)
    bench.runtime.rows["10.0.0.0:8000"].spec  # noqa: B018 - it is there
    gpu = GpuCondition(drain_reason=DrainReason.XID, slowdown=2.0)
    bench.apply(endpoint("10.0.0.0:8000", name="vllm-0", gpus=("GPU-1",), pools=("ns/a", "ns/b")))
    bench.runtime.view.set_gpu_conditions({"GPU-1": gpu})
    worker = PickerCell(bench.shm_dir, "w0")
    for _ in range(3):
        worker.start(0, 1, 10, now_ns)
    worker.finish(0, 1)
    page = SnapshotPage().render(bench.publish(now_ns).snapshot, 4096, now_ns + 250 * MS, [worker.view()])
    worker.close()
    expected = {family.name for family in (*ENDPOINT, *GPU, *HOST, *DERIVED)}
    assert names(page) == expected
    found = samples(page)
    labels = (("endpoint", "10.0.0.0:8000"), ("name", "vllm-0"))
    assert found["zerohop_endpoint_requests_running", labels] == 2
    assert found["zerohop_endpoint_kv_cache_usage_ratio", labels] == 0.5
    # A counter keeps every digit.
    assert found["zerohop_endpoint_prompt_tokens_total", labels] == 1e12 + 1
    assert found["zerohop_endpoint_value_age_seconds", labels] == pytest.approx(0.25)
    assert found["zerohop_endpoint_value_age_at_publish_seconds", labels] == 0
    assert found["zerohop_endpoint_flag", (*labels[:1], ("flag", "drain"), *labels[1:])] == 1
    assert found["zerohop_endpoint_flag", (*labels[:1], ("flag", "stale"), *labels[1:])] == 0
    assert found["zerohop_endpoint_picks_total", (*labels, ("worker", "w0"))] == 3
    assert found["zerohop_endpoint_in_flight", labels] == 2
    info = (("endpoint", "10.0.0.0:8000"), ("engine", "vllm"), ("name", "vllm-0"), ("pools", "ns/a,ns/b"), ("role", ""))
    assert found["zerohop_endpoint_info", info] == 1
    board = (("gpu", "1"), ("model", "H100"), ("uuid", "GPU-1"))
    assert found["zerohop_gpu_clock_event_reason", (*board[:2], ("reason", "hw_thermal"), *board[2:])] == 1
    assert found["zerohop_gpu_xid_last", board] == 79
    assert found["zerohop_snapshot_file_bytes", ()] == 4096


async def test_what_is_unknown_has_no_series(bench: Bench) -> None:
    now_ns = time.monotonic_ns()
    bench.apply(endpoint())
    bench.runtime.view.set_gpus([{"uuid": "GPU-1", "name": None, "index": 0}])
    bench.runtime.view.gpus.set(0, "flags", GpuFlag.USED)
    page = SnapshotPage().render(bench.publish(now_ns).snapshot, 1, now_ns)
    found = names(page)
    assert not {family.name for family in ENDPOINT} & found
    assert not ({family.name for family in (*GPU, *HOST)} - {"zerohop_gpu_xid_errors_total"}) & found
    assert "zerohop_endpoint_value_age_seconds" not in found
    assert samples(page)["zerohop_endpoint_up", (("endpoint", "10.0.0.1:8000"), ("name", "10.0.0.1:8000"))] == 0
    assert "nan" not in page.lower()
    bench.readers["10.0.0.1:8000"].say(now_ns, running=0)
    page = SnapshotPage().render(bench.publish(now_ns).snapshot, 1, now_ns)
    assert names(page) & {family.name for family in ENDPOINT} == {
        "zerohop_endpoint_requests_running",
        "zerohop_endpoint_scrape_interval_seconds",
    }


async def test_labels_are_escaped(bench: Bench) -> None:
    # A backslash before an n is not a new line.
    bench.apply(endpoint(name='a"b\\n\nd'))
    page = SnapshotPage().render(bench.publish(time.monotonic_ns()).snapshot, 1)
    labels = {dict(labels)["name"] for name, labels in samples(page) if name == "zerohop_endpoint_up"}
    assert labels == {'a"b\\n\nd'}


async def test_labels_follow_the_cold_map(bench: Bench) -> None:
    page = SnapshotPage()
    bench.apply(endpoint(name="old"))
    assert 'name="old"' in page.render(bench.publish(time.monotonic_ns()).snapshot, 1)
    bench.apply(endpoint(name="new"), endpoint("10.0.0.2:8000"))
    text = page.render(bench.publish(time.monotonic_ns()).snapshot, 1)
    assert 'name="new"' in text
    assert 'name="old"' not in text
    assert 'endpoint="10.0.0.2:8000"' in text


class Served:
    """A metrics server over a bench."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.healthy = True
        self.publisher = Publisher(bench.writer, bench.runtime.prepare, 5 * MS)
        stats = [CollectorStats("host", 0.1, success=True, has_data=True), CollectorStats("gpu")]
        registry = CollectorRegistry()
        registry.register(AgentMetrics(bench.runtime, self.publisher, lambda: stats, EndpointsFileState()))
        self.server = MetricsServer(Address("127.0.0.1", 0), bench.shm_dir, registry, lambda: self.healthy)
        self.server.start()

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.address.port, timeout=10)
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, body


@pytest.fixture
def served(bench: Bench) -> Iterator[Served]:
    one = Served(bench)
    yield one
    one.server.close()


async def get(served: Served, path: str, **options: str) -> tuple[int, dict[str, str], bytes]:
    return await asyncio.to_thread(served.get, path, **options)


async def test_over_http(served: Served) -> None:
    status, headers, body = await get(served, "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "zerohop_endpoint_up" not in body.decode()  # nothing is published yet: only the agent speaks of itself
    served.bench.apply(endpoint())
    served.bench.readers["10.0.0.1:8000"].fail(UnhealthyReason.REFUSED)
    served.bench.publish(time.monotonic_ns())
    _, _, body = await get(served, "/metrics")
    found = samples(body.decode())
    assert found["zerohop_endpoint_up", (("endpoint", "10.0.0.1:8000"), ("name", "10.0.0.1:8000"))] == 0
    assert found["zerohop_agent_scrape_errors_total", (("endpoint", "10.0.0.1:8000"), ("reason", "refused"))] == 1
    assert found["zerohop_agent_collector_success", (("collector", "host"),)] == 1
    assert ("zerohop_agent_collector_success", (("collector", "gpu"),)) not in found  # it has not run yet
    status, headers, packed = await get(served, "/metrics", **{"Accept-Encoding": "gzip"})
    assert headers["content-encoding"] == "gzip"
    assert names(gzip.decompress(packed).decode()) == {name for name, _ in found}


async def test_liveness_and_other_paths(served: Served) -> None:
    assert (await get(served, "/healthz"))[0] == 200
    served.healthy = False
    assert (await get(served, "/healthz"))[0] == 503
    assert (await get(served, "/"))[0] == 404
    assert (await get(served, "/metrics?x=1"))[0] == 200
    status, headers, body = await get(served, "/metrics", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has no IPv6")
async def test_all_addresses_are_those_of_both_families(served: Served) -> None:
    server = MetricsServer(Address("::", 0), served.bench.shm_dir, CollectorRegistry(), lambda: True)
    server.start()
    for host in ("127.0.0.1", "::1"):
        connection = http.client.HTTPConnection(host, server.address.port, timeout=10)
        await asyncio.to_thread(connection.request, "GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()
    await asyncio.to_thread(server.close)


async def test_an_address_in_use_is_a_configuration_error(served: Served) -> None:
    with pytest.raises(
        ConfigError, match=rf"--metrics-address: cannot listen on 127.0.0.1:{served.server.address.port}"
    ):
        MetricsServer(served.server.address, served.bench.shm_dir, CollectorRegistry(), lambda: True)
    port = free_port()
    with pytest.raises(ConfigError, match="--metrics-address"):
        MetricsServer(Address("203.0.113.1", port), served.bench.shm_dir, CollectorRegistry(), lambda: True)


async def test_a_large_page_is_quick_and_publishes_go_on(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(capacity=64)
    now_ns = time.monotonic_ns()
    fill(bench, 64, 8, now_ns)
    served = Served(bench)
    served.publisher.start()
    bench.runtime.on_change = served.publisher.touch
    stop = threading.Event()
    durations: list[float] = []

    def scrape() -> None:
        while not stop.is_set():
            before = time.thread_time()
            served.server.page()
            durations.append(time.thread_time() - before)

    thread = threading.Thread(target=scrape)
    thread.start()
    before = served.publisher.publishes

    def both_go_on() -> bool:
        served.publisher.touch()
        return served.publisher.publishes - before >= 30 and len(durations) >= 5

    await eventually_async(both_go_on)
    stop.set()
    await asyncio.to_thread(thread.join)
    page = served.server.page().decode()
    served.publisher.stop()
    served.server.close()
    await bench.runtime.close()
    assert page.count("\n") > 2500
    # Measured 4 ms; the bound leaves room for a loaded machine.
    assert min(durations) < 0.015


def documented() -> set[str]:
    text = (ROOT / "docs" / "metrics.md").read_text()
    return set(re.findall(r"^\| `(zerohop_[a-z0-9_]+)` \|", text, re.MULTILINE))


async def test_the_documentation_lists_exactly_what_is_exported(served: Served) -> None:
    now_ns = time.monotonic_ns()
    fill(served.bench, 1, 1, now_ns)
    served.bench.apply(endpoint("10.0.0.0:8000", gpus=("GPU-0",), draining=True))
    served.bench.runtime.view.set_gpu_conditions({"GPU-0": GpuCondition(slowdown=2.0)})
    served.bench.readers["10.0.0.0:8000"].fail(UnhealthyReason.REFUSED)
    served.bench.publish(now_ns)
    worker = PickerCell(served.bench.shm_dir, "w0")
    exported = {name for name in names(served.server.page().decode()) if name.startswith("zerohop_")}
    worker.close()
    assert exported - documented() == set()
    assert documented() - exported == set()
    text = (ROOT / "docs" / "metrics.md").read_text()
    for family in (*ENDPOINT, *GPU, *HOST, *DERIVED):
        assert f"| `{family.name}` | {family.kind} |" in text

"""A reader against a server that listens on a socket: pages, failures, models, restarts, self-check."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl

import pytest

from support.raw_server import RawServer, http, raw_server
from support.waiting import eventually_async
from zerohop_agent.endpoints import EndpointSpec
from zerohop_agent.modelserver.reader import ModelServerReader
from zerohop_agent.modelserver.settings import ModelServerSettings
from zerohop_agent.signals import Signals, SourceError
from zerohop_snapshot.layout import UnhealthyReason as R

MS = 1_000_000
SETTINGS = ModelServerSettings(scrape_interval_ns=5 * MS, timeout_ns=5000 * MS, multi_process_interval_ns=400 * MS)
PAGE = (
    'process_start_time_seconds 1.7e9\nvllm:num_requests_waiting{engine="0"} 3\n'
    'vllm:num_requests_running{engine="0"} 4\nvllm:kv_cache_usage_perc 0.5\nvllm:generation_tokens_total 9\n'
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1\n'
)
MODELS = {"data": [{"id": "base", "max_model_len": 2048}, {"id": "lora", "parent": "base", "max_model_len": None}]}


@dataclass
class ModelServer:
    """What the server says now."""

    page: bytes = PAGE.encode()
    models: bytes = json.dumps(MODELS).encode()
    metrics_status: str = "200 OK"
    models_status: str = "200 OK"
    headers: str = "Content-Type: text/plain; version=0.0.4\r\n"
    hangs: bool = False
    models_hang: bool = False
    health_status: str = "200 OK"

    async def answer(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        if head.startswith(b"GET /v1/models "):
            if not self.models_hang:
                writer.write(http(self.models, status=self.models_status))
        elif head.startswith(b"GET /health "):
            writer.write(http(b"", status=self.health_status))
        elif head.startswith((b"GET /metrics ", b"GET /prometheus/metrics ")):
            if not self.hangs:
                writer.write(http(self.page, status=self.metrics_status, headers=self.headers))
        else:
            writer.write(http(b"{}", status="404 Not Found"))
        return True


@dataclass
class Seen:
    """What a reader reported."""

    signals: list[Signals] = field(default_factory=list)
    observed_ns: list[int] = field(default_factory=list)
    errors: list[SourceError] = field(default_factory=list)

    def on_signals(self, _spec: EndpointSpec, signals: Signals, observed_ns: int, elapsed_ns: int) -> None:
        assert elapsed_ns > 0
        self.signals.append(signals)
        self.observed_ns.append(observed_ns)

    def on_failure(self, _spec: EndpointSpec, error: SourceError) -> None:
        self.errors.append(error)


@asynccontextmanager
async def reading(
    server: RawServer, settings: ModelServerSettings = SETTINGS, **changes: object
) -> AsyncIterator[tuple[ModelServerReader, Seen]]:
    seen = Seen()
    spec = replace(EndpointSpec(key="a", address=server.address, name="a"), **changes)  # type: ignore[arg-type]
    reader = ModelServerReader(spec, settings, seen.on_signals, seen.on_failure)
    task = asyncio.create_task(reader.run())
    try:
        yield reader, seen
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_signals_models_and_times() -> None:
    model_server = ModelServer()
    async with raw_server(model_server.answer) as server, reading(server) as (reader, seen):
        before = time.monotonic_ns()
        await eventually_async(lambda: any(signals.models for signals in seen.signals))
        last = seen.signals[-1]
        assert (last.waiting, last.running, last.kv_capacity_tokens) == (3, 4, 160)
        assert (last.models, last.adapters, last.max_model_len) == (("base", "lora"), ("lora",), 2048)
        assert reader.engine == "vllm"
        assert reader.interval_ns >= 5 * MS
        assert all(before - 10**9 < observed <= time.monotonic_ns() for observed in seen.observed_ns)
        assert seen.observed_ns == sorted(seen.observed_ns)
        assert server.connections == 2  # one for the page, one for the models


async def test_the_page_is_asked_for_as_text() -> None:
    async with raw_server(ModelServer().answer) as server, reading(server) as (_, seen):
        await eventually_async(lambda: seen.signals)
        assert b"accept: text/plain;version=0.0.4" in server.requests[0].lower()


@pytest.mark.parametrize(
    ("change", "reason", "word"),
    [
        ({"metrics_status": "404 Not Found"}, R.HTTP_STATUS, "--enable-metrics"),
        ({"metrics_status": "501 Not Implemented", "page": b'{"error":1}'}, R.HTTP_STATUS, "--metrics"),
        ({"metrics_status": "503 Service Unavailable"}, R.HTTP_STATUS, "503"),
        ({"page": b"[{}]"}, R.NOT_METRICS, "/prometheus/metrics"),
        ({"page": b"<html></html>\n"}, R.NOT_METRICS, "HTML"),
        ({"page": b""}, R.NOT_METRICS, "empty"),
        ({"page": b"python_info 1\n"}, R.ENGINE_UNKNOWN, "python_info"),
        ({"page": PAGE[:-3].encode()}, R.NOT_METRICS, "cut"),
        ({"page": b"x" * 9_000_000}, R.TOO_LARGE, "8388608"),
        ({"hangs": True}, R.TIMEOUT, "in time"),
    ],
)
async def test_failures_are_named_and_end(change: dict[str, object], reason: R, word: str) -> None:
    good = ModelServer()
    model_server = replace(good, **change)  # type: ignore[arg-type]
    settings = replace(SETTINGS, timeout_ns=300 * MS) if model_server.hangs else SETTINGS
    async with raw_server(model_server.answer) as server, reading(server, settings) as (_, seen):
        await eventually_async(lambda: seen.errors)
        assert seen.errors[0].reason is reason
        assert word in seen.errors[0].detail
        assert not seen.signals
        model_server.page, model_server.metrics_status, model_server.hangs = good.page, good.metrics_status, False
        await eventually_async(lambda: seen.signals)


async def test_a_server_that_dies_and_comes_back_with_other_models() -> None:
    first = ModelServer()
    async with raw_server(first.answer) as server:
        address = server.address
        async with reading(server) as (_, seen):
            await eventually_async(lambda: seen.signals and seen.signals[-1].models)
            assert server.server is not None
            server.server.close()
            server.drop_connections()
            await eventually_async(lambda: seen.errors)
            assert seen.errors[-1].reason in (R.REFUSED, R.RESET)
            count = len(seen.signals)
            page = PAGE.replace("1.7e9", "1.8e9").encode()
            second = ModelServer(page=page, models=b'{"data":[{"id":"other"}]}')
            async with raw_server(second.answer, address.port):
                await eventually_async(lambda: len(seen.signals) > count)
                await eventually_async(lambda: seen.signals[-1].models == ("other",))
                assert seen.signals[-1].process_start_s == 1.8e9


async def test_a_restart_between_two_readings_asks_for_the_models_again() -> None:
    model_server = ModelServer()
    async with raw_server(model_server.answer) as server, reading(server) as (_, seen):
        await eventually_async(lambda: seen.signals and seen.signals[-1].models == ("base", "lora"))
        model_server.models = b'{"data":[{"id":"other"}]}'
        model_server.page = PAGE.replace("1.7e9", "1.8e9").encode()
        await eventually_async(lambda: seen.signals[-1].models == ("other",))


@pytest.mark.parametrize(
    "model_server",
    [
        ModelServer(models_status="401 Unauthorized"),
        ModelServer(models=b"<html>"),
        ModelServer(models=b'{"data": 3}'),
    ],
)
async def test_models_that_cannot_be_had_are_unknown_and_harm_nothing(model_server: ModelServer) -> None:
    async with raw_server(model_server.answer) as server, reading(server) as (_, seen):
        await eventually_async(lambda: "/v1/models" in server.paths())
        await eventually_async(lambda: len(seen.signals) > 3)
        assert seen.signals[-1].models is None
        assert seen.signals[-1].waiting == 3
        assert not seen.errors


async def test_models_are_kept_while_a_busy_server_does_not_answer() -> None:
    model_server = ModelServer()
    settings = replace(SETTINGS, timeout_ns=50 * MS, models_interval_ns=20 * MS)
    async with raw_server(model_server.answer) as server, reading(server, settings) as (_, seen):
        await eventually_async(lambda: seen.signals and seen.signals[-1].models)
        model_server.models_hang = True
        asked = server.paths().count("/v1/models")
        await eventually_async(lambda: server.paths().count("/v1/models") > asked + 2)
        assert (seen.signals[-1].models, seen.signals[-1].max_model_len) == (("base", "lora"), 2048)
        model_server.models_hang, model_server.models_status = False, "404 Not Found"
        await eventually_async(lambda: seen.signals[-1].models is None)


async def test_a_dead_engine_behind_a_live_page_is_found() -> None:
    model_server = ModelServer()
    settings = replace(SETTINGS, health_interval_ns=10 * MS)
    async with raw_server(model_server.answer) as server, reading(server, settings) as (_, seen):
        await eventually_async(lambda: server.paths().count("/health") > 2)
        assert not seen.errors
        model_server.health_status = "503 Service Unavailable"
        await eventually_async(lambda: seen.errors)
        assert seen.errors[0].reason is R.DEAD
        assert "/health" in seen.errors[0].detail
        count = len(seen.signals)
        model_server.health_status = "200 OK"
        await eventually_async(lambda: len(seen.signals) > count)


async def test_engines_whose_health_path_is_no_such_thing_are_not_asked() -> None:
    model_server = ModelServer(
        page=b"sglang:num_queue_reqs 0\nsglang:num_running_reqs 0\n", health_status="503 Service Unavailable"
    )
    settings = replace(SETTINGS, health_interval_ns=5 * MS)
    async with raw_server(model_server.answer) as server, reading(server, settings) as (_, seen):
        await eventually_async(lambda: len(seen.signals) > 20)
        assert not seen.errors
        assert "/health" not in server.paths()


async def test_many_processes_are_read_seldom_unless_the_endpoint_insists() -> None:
    page = PAGE.replace("vllm:kv_cache_usage_perc 0.5", 'vllm:kv_cache_usage_perc{pid="1"} 0.5').encode()
    async with raw_server(ModelServer(page=page).answer) as server:
        async with reading(server) as (reader, seen):
            await eventually_async(lambda: seen.signals)
            assert reader.interval_ns == 400 * MS
        async with reading(server, scrape_interval_ns=10 * MS) as (reader, seen):
            await eventually_async(lambda: len(seen.signals) > 3)
            assert reader.interval_ns < 400 * MS


async def test_llama_is_left_in_peace() -> None:
    page = b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n"
    async with raw_server(ModelServer(page=page).answer) as server, reading(server) as (reader, seen):
        await eventually_async(lambda: seen.signals)
        assert reader.interval_ns == 5_000 * MS
        assert server.paths().count("/metrics") == 1


async def test_an_engine_brings_its_path() -> None:
    page = b"trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\n"
    async with raw_server(ModelServer(page=page).answer) as server, reading(server, engine="trtllm") as (_, seen):
        await eventually_async(lambda: seen.signals)
        assert "/prometheus/metrics" in server.paths()
        assert "/metrics" not in server.paths()


async def test_an_engine_that_nobody_knows_is_said_and_never_scraped() -> None:
    async with raw_server(ModelServer().answer) as server, reading(server, engine="vlm") as (_, seen):
        await eventually_async(lambda: seen.errors)
        assert seen.errors[0].reason is R.ENGINE_UNKNOWN
        assert "known are" in seen.errors[0].detail
        assert not server.requests


async def test_orca_fills_what_the_page_lacks() -> None:
    header = (
        "endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=9\r\n"
    )
    model_server = ModelServer(page=b"vllm:num_requests_waiting 3\n", headers=header)
    settings = replace(SETTINGS, orca=True)
    async with raw_server(model_server.answer) as server:
        async with reading(server, settings) as (_, seen):
            await eventually_async(lambda: seen.signals)
            assert (seen.signals[0].waiting, seen.signals[0].kv_cache_usage) == (3, 0.4)
            assert b"endpoint-load-metrics-format: TEXT" in server.requests[0]
        async with reading(server) as (_, seen):
            await eventually_async(lambda: seen.signals)
            assert seen.signals[0].kv_cache_usage is None


async def test_the_self_check_says_each_thing_once(caplog: pytest.LogCaptureFixture) -> None:
    model_server = ModelServer(page=b"vllm:num_requests_waiting 3\n")
    settings = replace(SETTINGS, stale_after_ns=3 * MS)
    with caplog.at_level(logging.INFO, "zerohop"):
        async with (
            raw_server(model_server.answer) as server,
            reading(server, settings, protocol_version="9") as (_, seen),
        ):
            await eventually_async(lambda: len(seen.signals) > 20)
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(messages) == len(set(messages))
    assert sum("no running" in message for message in messages) == 1
    assert sum("stale after 3 ms" in message for message in messages) == 1
    assert sum("another version" in message for message in messages) == 1


async def test_a_lasting_failure_is_one_line_and_its_end_another(caplog: pytest.LogCaptureFixture) -> None:
    model_server = ModelServer(metrics_status="404 Not Found")
    with caplog.at_level(logging.INFO, "zerohop"):
        async with raw_server(model_server.answer) as server, reading(server) as (_, seen):
            await eventually_async(lambda: len(seen.errors) > 3)
            model_server.metrics_status = "200 OK"
            await eventually_async(lambda: seen.signals)
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("reading the endpoint fails") == 1
    assert messages.count("reading the endpoint works") == 1


@dataclass
class NarrowServer(ModelServer):
    """Prints chosen metrics only, at the path with a slash, as prometheus_client's own application does."""

    works: bool = True

    async def answer(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        path = head.split(b" ")[1].decode()
        if not path.startswith("/metrics/?"):
            return await super().answer(head, writer)
        wanted = [name for key, name in parse_qsl(path.partition("?")[2]) if key == "name[]"]
        lines = [line for line in self.page.decode().splitlines() if line.partition("{")[0].split(" ")[0] in wanted]
        body = "".join(f"{line}\n" for line in lines).encode()
        writer.write(http(body if self.works else b"{}", status="200 OK" if self.works else "404 Not Found"))
        return True


BIG_PAGE = (PAGE + 'vllm:something_bucket{le="1"} 5\n' * 500).encode()


async def test_a_server_that_can_is_asked_for_the_wanted_metrics_only() -> None:
    model_server = NarrowServer(page=BIG_PAGE)
    async with raw_server(model_server.answer) as server, reading(server) as (reader, seen):
        await eventually_async(lambda: len(seen.signals) > 5 and seen.signals[-1].models)
        assert [path.partition("?")[0] for path in server.paths() if "metrics" in path][:3] == [
            "/metrics", "/metrics/", "/metrics/",
        ]  # fmt: skip
        last = seen.signals[-1]
        assert last == replace(seen.signals[0], models=last.models, adapters=last.adapters, max_model_len=2048)
        adapters = b'vllm:lora_requests_info{max_lora="2",running_lora_adapters="a",waiting_lora_adapters=""} 5\n'
        model_server.page = BIG_PAGE + adapters
        await eventually_async(lambda: seen.signals[-1].lora_running == frozenset("a"))
        assert reader.engine == "vllm"
        # A server of another kind takes its place: back to the whole page.
        model_server.works = False
        await eventually_async(lambda: seen.errors)
        count = len(seen.signals)
        await eventually_async(lambda: len(seen.signals) > count + 2)
        assert server.paths()[-1] == "/metrics"


@pytest.mark.parametrize("change", [{"works": False}, {"page": PAGE.encode()}])
async def test_a_server_that_cannot_is_asked_once(change: dict[str, object]) -> None:
    model_server = replace(NarrowServer(page=BIG_PAGE), **change)  # type: ignore[arg-type]
    async with raw_server(model_server.answer) as server, reading(server) as (_, seen):
        await eventually_async(lambda: len(seen.signals) > 5)
        assert sum("?" in path for path in server.paths()) == 1
        assert not seen.errors
    async with raw_server(model_server.answer) as server, reading(server, replace(SETTINGS, narrow=False)) as (_, seen):
        await eventually_async(lambda: len(seen.signals) > 5)
        assert not any("?" in path for path in server.paths())

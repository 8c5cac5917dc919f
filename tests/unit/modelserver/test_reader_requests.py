"""What a reader asks of a model server, where and how often."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl

import pytest

from support.raw_server import http, raw_server
from support.waiting import eventually_async
from unit.modelserver.model_server import MS, PAGE, SETTINGS, ModelServer, reading
from zerohop_snapshot.layout import UnhealthyReason as R


async def test_the_page_is_asked_for_as_text() -> None:
    async with raw_server(ModelServer().answer) as server, reading(server) as (_, seen):
        await eventually_async(lambda: seen.signals)
        assert b"accept: text/plain;version=0.0.4" in server.requests[0].lower()


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

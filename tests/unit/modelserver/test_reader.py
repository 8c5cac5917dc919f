"""What a reader reports of a model server: signals, failures, models, restarts, self-check."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest

from support.raw_server import raw_server
from support.waiting import eventually_async
from unit.modelserver.model_server import MS, PAGE, SETTINGS, ModelServer, reading
from zerohop_snapshot.layout import UnhealthyReason as R


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

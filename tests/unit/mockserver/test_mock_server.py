"""The mock model server over real sockets: it must look like vLLM, and take time like one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.waiting import eventually_async
from zerohop_console.demo.client import Client, Outcome, get, post
from zerohop_console.mockserver.api import Api, serve
from zerohop_console.mockserver.engine import Engine, EngineSettings
from zerohop_console.mockserver.page import Measurements, Page
from zerohop_console.mockserver.timing import StepTime


class Server:
    """One server in this process, with an engine whose step time a test can set."""

    def __init__(self, port: int, engine: Engine, measurements: Measurements, api: Api) -> None:
        self.engine, self.measurements, self.api, self.port = engine, measurements, api, port
        self.client = Client("127.0.0.1", port, keep_body=True)

    async def post(self, path: str, body: Any) -> Outcome:
        return await self.client.send(post(path, body))

    async def get(self, path: str) -> Outcome:
        return await self.client.send(get(path))

    async def sample(self, name: str, **labels: str) -> float:
        page = (await self.get("/metrics")).body.decode()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        raise AssertionError(f"no {name} with {labels}")


@contextlib.asynccontextmanager
async def running(**changes: Any) -> AsyncIterator[Server]:
    fast = StepTime(base_s=0.001, weights_s=0.0, token_s=0.0, sequence_s=0.0, context_token_s=0.0)
    settings = EngineSettings(**{"step_time": fast, **changes})
    measurements = Measurements()
    engine = Engine(settings, measurements)
    page = Page("tiny", settings, measurements, lora=True)
    api = Api(
        name="one",
        model="tiny",
        adapters=("alpha", "beta", "gamma"),
        engine=engine,
        page=page,
        measurements=measurements,
    )
    server, connections = await serve(api, "127.0.0.1", 0)
    stepping = asyncio.create_task(engine.run())
    made = Server(server.sockets[0].getsockname()[1], engine, measurements, api)
    try:
        yield made
    finally:
        made.client.close()
        stepping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stepping
        server.close()
        for connection in list(connections):
            connection.abort()
        await asyncio.sleep(0)


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **fields}


async def test_a_whole_answer_has_the_shape_of_openai_s() -> None:
    async with running() as server:
        outcome = await server.post("/v1/chat/completions", chat("x" * 400, max_tokens=5))
        answer = json.loads(outcome.body)
        assert (outcome.status, answer["object"], answer["model"]) == (200, "chat.completion", "tiny")
        assert answer["choices"][0]["message"]["role"] == "assistant"
        assert answer["choices"][0]["finish_reason"] == "length"
        usage = answer["usage"]
        assert usage["completion_tokens"] == 5
        assert usage["prompt_tokens"] == 102  # 406 bytes with the role
        assert usage["total_tokens"] == 107
        text = await server.post("/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 2})
        assert json.loads(text.body)["choices"][0]["text"]


async def test_a_stream_sends_one_event_per_token_and_ends_with_done() -> None:
    async with running() as server:
        options = {"include_usage": True}
        outcome = await server.post("/v1/chat/completions", chat(stream=True, max_tokens=3, stream_options=options))
        events = outcome.whole_body().decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        parts = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
        assert [bool(part["choices"]) for part in parts] == [True, True, True, False]
        assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
        assert [part["choices"][0]["finish_reason"] for part in parts[:3]] == [None, None, "length"]
        assert parts[3]["usage"]["completion_tokens"] == 3


async def test_a_body_in_any_pieces_is_the_same_request() -> None:
    async with running() as server:
        body = json.dumps(chat(max_tokens=1)).encode()
        whole = post("/v1/chat/completions", body)
        chunked = b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
        chunked += (
            b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:30], body[30:])) + b"0\r\n\r\n"
        )
        for request in (whole, chunked):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            for offset in range(0, len(request), 13):
                writer.write(request[offset : offset + 13])
                await writer.drain()
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.close()


async def test_two_requests_in_one_packet_get_two_answers_in_order() -> None:
    async with running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(post("/v1/chat/completions", chat(max_tokens=3)) + get("/v1/models"))
        heads = [await reader.readuntil(b"\r\n\r\n")]
        length = int(re.search(rb"content-length: (\d+)", heads[0])[1])  # type: ignore[index]
        assert b"chat.completion" in await reader.readexactly(length)
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        writer.close()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"model": 1}', 400),
        (b'{"model": "tiny", "messages": []}', 400),
        (b'{"model": "tiny", "messages": [1]}', 400),
        (b'{"model": "tiny", "messages": [{"content": "x"}], "max_tokens": 0}', 400),
        (b'{"model": "other", "messages": [{"content": "x"}]}', 404),
        (b'{"model": "tiny", "messages": [{"content": "x"}], "max_tokens": 1000000}', 400),
    ],
)
async def test_a_bad_request_is_the_client_s_fault(body: bytes, status: int) -> None:
    async with running() as server:
        outcome = await server.client.send(post("/v1/chat/completions", body))
        assert outcome.status == status
        assert json.loads(outcome.body)["error"]["code"] == status


async def test_what_is_no_http_ends_the_connection() -> None:
    async with running() as server:
        for garbage in (b"\x16\x03\x01\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(garbage)
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            writer.close()


async def test_gauges_follow_the_batch_and_come_back_to_zero() -> None:
    slow = StepTime(base_s=0.02, weights_s=0.0, token_s=0.0, sequence_s=0.0, context_token_s=0.0)
    async with running(max_num_seqs=3, num_gpu_blocks=100, step_time=slow) as server:
        body = chat("x" * 300, max_tokens=12)
        requests = [asyncio.create_task(server.post("/v1/chat/completions", body)) for _ in range(5)]
        await eventually_async(lambda: server.measurements.running == 3 and server.measurements.waiting == 2)
        assert await server.sample("vllm:num_requests_running", engine="0", model_name="tiny") == 3
        assert await server.sample("vllm:num_requests_waiting") == 2
        assert 0.1 < await server.sample("vllm:kv_cache_usage_perc") < 0.3
        assert all(outcome.ok for outcome in await asyncio.gather(*requests))
        assert await server.sample("vllm:num_requests_running") == 0
        assert await server.sample("vllm:kv_cache_usage_perc") == 0
        assert await server.sample("vllm:generation_tokens_total") == 60
        assert await server.sample("vllm:prompt_tokens_total") == 5 * 77
        assert await server.sample("vllm:time_to_first_token_seconds_count") == 5
        assert await server.sample("vllm:inter_token_latency_seconds_count") == 55
        assert await server.sample("vllm:request_success_total", finished_reason="length") == 5


async def test_the_page_is_valid_and_holds_what_a_reader_needs() -> None:
    async with running() as server:
        page = (await server.get("/metrics")).body.decode()
        names = {family.name for family in text_string_to_metric_families(page)}
        for name in (
            "num_requests_running",
            "num_requests_waiting",
            "kv_cache_usage_perc",
            "cache_config_info",
            "lora_requests_info",
            "prefix_cache_queries",
            "prefix_cache_hits",
            "num_preemptions",
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "e2e_request_latency_seconds",
        ):
            assert f"vllm:{name}" in names
        assert len(page) > 30_000
        assert await server.sample("vllm:cache_config_info", block_size="16", num_gpu_blocks="4000") == 1
        padded = Page("tiny", server.engine.settings, server.measurements, lora=False, padding_bytes=16_000).text()
        assert 48_000 < len(padded) < 53_000


async def test_a_repeated_prompt_hits_the_prefix_cache_and_another_adapter_does_not() -> None:
    async with running() as server:
        prompt = "word " * 200
        for model in ("tiny", "tiny", "alpha"):
            outcome = await server.post("/v1/chat/completions", {**chat(prompt, max_tokens=1), "model": model})
            cached = json.loads(outcome.body)["usage"]["prompt_tokens_details"]["cached_tokens"]
            # 1006 bytes are 15 whole blocks of 64 bytes
            assert cached == (240 if server.api.served == 2 else 0)
        assert await server.sample("vllm:prefix_cache_hits_total") == 240


async def test_only_max_loras_adapters_share_a_batch() -> None:
    slow = StepTime(base_s=0.01, weights_s=0.0, token_s=0.0, sequence_s=0.0, context_token_s=0.0)
    async with running(max_loras=1, step_time=slow) as server:
        requests = [
            asyncio.create_task(server.post("/v1/chat/completions", {**chat(max_tokens=8), "model": model}))
            for model in ("alpha", "beta", "tiny")
        ]
        await eventually_async(lambda: server.measurements.running == 2 and server.measurements.waiting == 1)
        page = (await server.get("/metrics")).body.decode()
        labels = r'max_lora="1",running_lora_adapters="(\w*)",waiting_lora_adapters="(\w*)"'
        series = re.findall(rf"vllm:lora_requests_info\{{{labels}\}} (\S+)", page)
        running_adapter, waiting_adapter, _ = max(series, key=lambda entry: float(entry[2]))
        assert {running_adapter, waiting_adapter} == {"alpha", "beta"}
        assert all(outcome.ok for outcome in await asyncio.gather(*requests))


async def test_a_full_kv_cache_preempts_and_still_answers_everyone() -> None:
    async with running(num_gpu_blocks=20) as server:
        requests = [server.post("/v1/chat/completions", chat("x" * 200, max_tokens=60)) for _ in range(5)]
        outcomes = await asyncio.gather(*requests)
        assert [json.loads(outcome.body)["usage"]["completion_tokens"] for outcome in outcomes] == [60] * 5
        assert server.measurements.preemptions > 0
        assert await server.sample("vllm:kv_cache_usage_perc") == 0


async def test_a_client_that_leaves_frees_its_place() -> None:
    async with running() as server:
        request = asyncio.create_task(server.post("/v1/chat/completions", chat(stream=True, max_tokens=10_000)))
        await eventually_async(lambda: server.engine.unfinished == 1)
        request.cancel()
        await eventually_async(lambda: server.engine.unfinished == 0, what="the engine has dropped the request")
        assert await server.sample("vllm:request_success_total", finished_reason="abort") == 1
        assert await server.sample("vllm:num_requests_running") == 0


async def test_it_can_be_slowed_and_broken_while_it_runs() -> None:
    async with running() as server:
        assert (await server.post("/admin", {"slow_factor": 3, "ready": False})).ok
        assert server.engine.slow_factor == 3
        assert (await server.get("/health")).status == 503
        assert (await server.post("/admin", {"api_fault": "status", "status": 429})).ok
        assert (await server.post("/v1/chat/completions", chat())).status == 429
        assert (await server.get("/metrics")).ok
        assert (await server.post("/admin", {"api_fault": "none", "page_fault": "html"})).ok
        assert (await server.post("/v1/chat/completions", chat())).ok
        assert b"<html>" in (await server.get("/metrics")).body
        for wrong in ({"slow_factor": 0}, {"slow_factor": "x"}, {"page_fault": "?"}, {"x": 1}, {"ready": 1}, [1]):
            assert (await server.post("/admin", wrong)).status == 400, wrong
        assert json.loads((await server.get("/admin")).body)["slow_factor"] == 3


def test_the_step_time_is_that_of_the_measured_server() -> None:
    step = StepTime()
    for running_requests, measured_s in ((1, 0.00741), (49, 0.00895), (84, 0.01031)):
        context = running_requests * 234
        assert step.step_s(0, running_requests, 0, context) == pytest.approx(measured_s, rel=0.05)
    assert step.step_s(8192, 0, 1, 0) > 0.17

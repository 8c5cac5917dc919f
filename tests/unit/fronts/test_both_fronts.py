"""One suite for both fronts, over real sockets, with a stock gRPC client."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.fronts import (
    PROCESS,
    Exchange,
    Served,
    destination,
    echoed,
    request_body,
    request_headers,
    response_body,
    response_headers,
    serving,
)
from support.schedulers import FixedScheduler
from support.waiting import eventually_async
from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_picker._pb import health_pb2
from zerohop_picker.fronts.limits import Limits
from zerohop_picker.protocol.core import ProtocolCore
from zerohop_picker.protocol.settings import ProtocolSettings

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'

pytestmark = pytest.mark.parametrize("kind", ["native", "grpcio"])


@pytest.fixture
def scheduler() -> FixedScheduler:
    return FixedScheduler()


@pytest.fixture(params=["unix", "tcp", "tls"])
async def served(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, scheduler: FixedScheduler
) -> AsyncIterator[Served]:
    where = f"unix:{tmp_path}/picker.sock" if request.param == "unix" else "127.0.0.1:0"
    async with serving(kind, ProtocolCore(scheduler), where, tls=request.param == "tls") as served:
        yield served


@pytest.fixture
async def local(kind: str, tmp_path: Path, scheduler: FixedScheduler) -> AsyncIterator[Served]:
    core = ProtocolCore(scheduler, ProtocolSettings(response="observe"))
    async with serving(kind, core, f"unix:{tmp_path}/picker.sock") as served:
        yield served


async def test_a_chat_request_is_picked_and_its_body_comes_back(served: Served, scheduler: FixedScheduler) -> None:
    async with served.channel() as channel:
        exchange = Exchange(channel)
        await exchange.send(request_headers(), request_body(CHAT[:20]), request_body(CHAT[20:], end=True))
        replies = await exchange.rest()
        assert destination(replies[0]) == "10.0.0.1:8000,10.0.0.2:8000"
        assert echoed(replies[1:]) == CHAT
        assert await exchange.status() == (grpc.StatusCode.OK, "")
    assert scheduler.in_flight == 0
    assert [request.model for request in scheduler.requests] == ["m"]


@pytest.mark.parametrize("size", [0, 62_000, 300_000, 8_000_000])
async def test_bodies_of_any_size_come_back_whole(local: Served, size: int) -> None:
    body = b'{"model":"m","prompt":"' + os.urandom(size // 2).hex().encode() + b'"}'
    async with local.channel(options=[("grpc.max_receive_message_length", -1)]) as channel:
        exchange = Exchange(channel)
        await exchange.send(request_headers())
        for start in range(0, len(body), 200_000):
            await exchange.send(request_body(body[start : start + 200_000]))
        await exchange.send(request_body(b"", end=True), response_headers(), response_body(b"", end=True))
        replies = await exchange.rest()
        assert echoed(replies) == body


async def test_a_buffered_body_of_8_mb_is_one_message(local: Served) -> None:
    body = b'{"model":"m","prompt":"' + b"x" * 8_000_000 + b'"}'
    async with local.channel() as channel:
        exchange = Exchange(channel)
        await exchange.send(request_headers(mode=pb.BUFFERED, response=pb.NONE))
        assert destination(await exchange.next()) is None
        await exchange.send(request_body(body, end=True))
        assert destination(await exchange.next()) == "10.0.0.1:8000,10.0.0.2:8000"


async def test_a_body_past_the_cap_is_413(kind: str, tmp_path: Path, scheduler: FixedScheduler) -> None:
    core = ProtocolCore(scheduler, ProtocolSettings(max_request_bytes=1000))
    async with (
        serving(kind, core, f"unix:{tmp_path}/picker.sock", limits=Limits.for_requests(1000)) as served,
        served.channel() as channel,
    ):
        exchange = Exchange(channel)
        await exchange.send(request_headers(), request_body(b"x" * 600), request_body(b"x" * 600))
        (reply,) = await exchange.rest()
        assert reply.immediate_response.status.code == 413
        assert core.counters.held_bytes == 0


async def test_response_chunks_come_back_at_once_and_unchanged(local: Served, scheduler: FixedScheduler) -> None:
    async with local.channel() as channel:
        exchange = Exchange(channel)
        await exchange.send(request_headers(), request_body(CHAT, end=True))
        await exchange.next()
        await exchange.next()
        await exchange.send(response_headers())
        assert (await exchange.next()).HasField("response_headers")
        for number in range(200):
            chunk = f"data: {number}\n\n".encode()
            await exchange.send(response_body(chunk))
            reply = await exchange.next()
            assert reply.response_body.response.body_mutation.streamed_response.body == chunk
        assert scheduler.in_flight == 1
        await exchange.send(response_body(b"", end=True))
        assert len(await exchange.rest()) == 1
    assert scheduler.in_flight == 0


async def test_garbage_ends_its_own_stream_only(local: Served) -> None:
    async with local.channel() as channel:
        good = Exchange(channel)
        await good.send(request_headers(), request_body(CHAT))
        raw = channel.stream_stream(PROCESS)()
        await raw.write(b"\xff\xff\xff\xff")
        assert await raw.code() is grpc.StatusCode.INVALID_ARGUMENT
        await good.send(request_body(b"", end=True))
        assert destination(await good.next()) is not None


async def test_an_unknown_method_is_unimplemented(local: Served) -> None:
    async with local.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary("/envoy.service.ext_proc.v3.ExternalProcessor/Other")(b"")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_scheduler_that_breaks_costs_no_request_of_another(local: Served, scheduler: FixedScheduler) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("a plugin's bug")

    async with local.channel() as channel:
        scheduler.refuse = broken
        exchange = Exchange(channel)
        await exchange.send(request_headers(), request_body(CHAT, end=True))
        (reply,) = await exchange.rest()
        assert reply.immediate_response.status.code == 500
        scheduler.refuse = lambda request: None
        exchange = Exchange(channel)
        await exchange.send(request_headers(), request_body(CHAT, end=True))
        assert destination(await exchange.next()) is not None


async def test_a_reset_at_any_step_leaves_nothing(local: Served, scheduler: FixedScheduler) -> None:
    script = [
        request_headers(), request_body(CHAT[:9]), request_body(CHAT[9:], end=True), response_headers(),
        response_body(b"data: x\n\n"), response_body(b"data: [DONE]\n\n"), response_body(b"", end=True),
    ]  # fmt: skip
    async with local.channel() as channel:
        for sent in range(len(script)):
            exchange = Exchange(channel)
            await exchange.send(*script[:sent])
            if sent > 2:
                await exchange.next()
            exchange.call.cancel()
        await eventually_async(lambda: local.front.open_streams == 0)
    assert scheduler.in_flight == 0
    assert local.core.counters.held_bytes == 0
    assert all(len(ticket.outcomes) == 1 for ticket in scheduler.tickets)


async def test_random_resets_leave_nothing(
    local: Served, scheduler: FixedScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    async def one(channel: Any, number: int) -> None:
        exchange = Exchange(channel)
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await exchange.send(request_headers())
            if number % 4 > 0:
                await exchange.send(request_body(CHAT, end=number % 4 > 1))
            if number % 4 > 2:
                await exchange.next()
            exchange.call.cancel()

    async with local.channel() as channel:
        for batch in range(10):
            await asyncio.gather(*(one(channel, batch + number) for number in range(50)))
        await eventually_async(lambda: local.front.open_streams == 0)
    assert scheduler.in_flight == 0
    assert local.counted("internal_errors") == 0
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_a_thousand_open_streams(local: Served) -> None:
    async with local.channel() as channel:
        exchanges = [Exchange(channel) for _ in range(1000)]
        await asyncio.gather(*(exchange.send(request_headers()) for exchange in exchanges))
        await eventually_async(lambda: local.front.open_streams == 1000)
        await asyncio.gather(*(exchange.send(request_body(CHAT, end=True)) for exchange in exchanges))
        replies = await asyncio.gather(*(exchange.next() for exchange in exchanges))
        assert all(destination(reply) is not None for reply in replies)
        for exchange in exchanges:
            exchange.call.cancel()
        await eventually_async(lambda: local.front.open_streams == 0)


async def test_health_over_the_same_port(served: Served) -> None:
    async with served.channel() as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )  # fmt: skip
        names = ("", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor")
        for ready in (False, True):
            served.health.update(ready=ready, pools={"ns/a": ready})
            for service in (*names, "pool/ns/a"):
                reply = await check(health_pb2.HealthCheckRequest(service=service))
                assert reply.status == (1 if ready else 2)
        assert (await check(health_pb2.HealthCheckRequest(service="liveness"))).status == 1
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await check(health_pb2.HealthCheckRequest(service="nope"))
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_watch_and_list(local: Served) -> None:
    async with local.channel() as channel:
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch", health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )  # fmt: skip
        call = watch(health_pb2.HealthCheckRequest(service="readiness"))
        unknown = watch(health_pb2.HealthCheckRequest(service="nope"))
        assert (await call.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        local.health.update(ready=True, pools={})
        assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        local.health.drain()
        assert (await call.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        method = channel.unary_unary("/grpc.health.v1.Health/List")
        listed = health_pb2.HealthListResponse.FromString(await method(b""))
        assert listed.statuses["liveness"].status == health_pb2.HealthCheckResponse.SERVING
        assert set(listed.statuses) >= {"", "readiness", "inference-extension"}
        call.cancel()
        unknown.cancel()


async def test_an_upload_that_stands_still_is_408_and_a_long_answer_is_not(
    kind: str, tmp_path: Path, scheduler: FixedScheduler
) -> None:
    core = ProtocolCore(scheduler, ProtocolSettings(response="observe"))
    limits = Limits(idle_stream_ns=300_000_000)
    async with (
        serving(kind, core, f"unix:{tmp_path}/picker.sock", limits=limits) as served,
        served.channel() as channel,
    ):
        answered = Exchange(channel)
        await answered.send(request_headers(), request_body(CHAT, end=True))
        await answered.next()
        await answered.next()
        slow = Exchange(channel)
        await slow.send(request_headers(), request_body(b"{"))
        (reply,) = await slow.rest()
        assert reply.immediate_response.status.code == 408
        await answered.send(response_headers())
        assert (await answered.next()).HasField("response_headers")
        answered.call.cancel()


async def test_draining_finishes_what_is_open(local: Served, scheduler: FixedScheduler) -> None:
    async with local.channel() as channel:
        exchange = Exchange(channel)
        await exchange.send(request_headers(), request_body(CHAT[:9]))
        await eventually_async(lambda: local.front.open_streams == 1)
        draining = asyncio.ensure_future(local.front.drain(5.0))
        await asyncio.sleep(0)
        await exchange.send(request_body(CHAT[9:], end=True), response_headers(), response_body(b"x", end=True))
        replies = await exchange.rest()
        assert destination(replies[0]) is not None
        assert await draining == 0
    assert scheduler.in_flight == 0


async def test_draining_does_not_wait_for_those_who_watch(local: Served) -> None:
    async with local.channel() as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        await watch.read()
        async with asyncio.timeout(10):
            assert await local.front.drain(60.0) == 0
        assert await watch.code() is grpc.StatusCode.UNAVAILABLE


async def test_draining_ends_at_its_timeout(local: Served, scheduler: FixedScheduler) -> None:
    async with local.channel() as channel:
        exchange = Exchange(channel)
        await exchange.send(request_headers(), request_body(CHAT[:9]))
        await eventually_async(lambda: local.front.open_streams == 1)
        assert await local.front.drain(0.2) == 1
        reply = await exchange.next()
        assert reply.immediate_response.status.code == 503
        assert b'"rejected-shutting-down"' in reply.immediate_response.body
        await local.front.close()
    assert local.front.open_streams == 0
    assert local.core.counters.held_bytes == 0

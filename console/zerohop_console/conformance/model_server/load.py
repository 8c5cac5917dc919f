"""A little real load: streamed completions, watched through the metrics page."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from zerohop_console.conformance.model_server.facts import LoadFacts, Sample
from zerohop_process.address import Address
from zerohop_process.orca import ORCA_REQUEST_HEADER, ORCA_RESPONSE_HEADER

__all__ = ["LoadPlan", "run_load"]

_SETTLE_S = 5.0
_SAMPLE_S = 0.05
_RESPONSE_LIMIT_BYTES = 1 << 22

ReadPage = Callable[[float], Awaitable[Sample | None]]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to send where. `models` are taken in turn, adapters among them."""

    address: Address
    tls: ssl.SSLContext | None
    models: Sequence[str]
    adapters: Sequence[str]
    requests: int
    max_tokens: int
    timeout_s: float


async def run_load(plan: LoadPlan, read_page: ReadPage) -> LoadFacts:
    """Send all requests at once and watch the page until they are answered and after; then once more, and hang up.

    `read_page(started_s)` returns a sample, None where reading failed.
    """
    facts = LoadFacts(concurrency=plan.requests, adapters=tuple(name for name in plan.adapters if name in plan.models))
    started_s = time.monotonic()
    requests = [
        asyncio.create_task(_complete(plan, plan.models[number % len(plan.models)], facts, number == 0))
        for number in range(plan.requests)
    ]
    try:
        await _watch(read_page, facts.samples, started_s, lambda: all(task.done() for task in requests), plan.timeout_s)
    finally:
        await _cancel(requests)
    await _watch(read_page, facts.after, time.monotonic(), lambda: _idle(facts.after), _SETTLE_S)
    await _abort_half_way(plan, read_page, facts)
    return facts


async def _abort_half_way(plan: LoadPlan, read_page: ReadPage, facts: LoadFacts) -> None:
    ignored = LoadFacts()
    requests = [
        asyncio.create_task(_complete(plan, plan.models[number % len(plan.models)], ignored, False))
        for number in range(plan.requests)
    ]
    seen: list[Sample] = []
    try:
        await _watch(
            read_page, seen, time.monotonic(), lambda: (bool(seen) and not _idle(seen)) or _done(requests), 5.0
        )
        facts.aborted = sum(not task.done() for task in requests)
    finally:
        await _cancel(requests)
    await _watch(read_page, facts.after_abort, time.monotonic(), lambda: _idle(facts.after_abort), _SETTLE_S)


def _done(tasks: Sequence[asyncio.Task[None]]) -> bool:
    return all(task.done() for task in tasks)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _idle(samples: Sequence[Sample]) -> bool:
    if not samples:
        return False
    signals = samples[-1].signals
    return (signals.waiting or 0) + (signals.running or 0) == 0


async def _watch(
    read_page: ReadPage, samples: list[Sample], started_s: float, finished: Callable[[], bool], limit_s: float
) -> None:
    while True:
        sample = await read_page(started_s)
        if sample is not None:
            samples.append(sample)
        if finished() or time.monotonic() - started_s > limit_s:
            return
        await asyncio.sleep(_SAMPLE_S)


async def _complete(plan: LoadPlan, model: str, facts: LoadFacts, ask_orca: bool) -> None:
    """Send one streamed completion and read it to its end; hang up when cancelled."""
    try:
        async with asyncio.timeout(plan.timeout_s):
            reader, writer = await asyncio.open_connection(plan.address.host, plan.address.port, ssl=plan.tls)
    except (OSError, TimeoutError) as error:
        facts.failures.append(f"no connection: {error}")
        return
    try:
        writer.write(_request(plan, model, ask_orca))
        async with asyncio.timeout(plan.timeout_s):
            head = await reader.readuntil(b"\r\n\r\n")
            status = head.split(b" ", 2)[1:2] == [b"200"]
            chunks, size = 0, 0
            while data := await reader.read(65536):
                chunks += data.count(b"data: {")
                size += len(data)
                if size > _RESPONSE_LIMIT_BYTES:
                    break
        if ask_orca:
            facts.orca = _header(head, ORCA_RESPONSE_HEADER)
        if status and chunks:
            facts.answered += 1
            facts.chunks += chunks
        else:
            facts.failures.append(f"POST /v1/completions answers {head.split(b' ', 2)[1].decode('latin-1')}")
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError) as error:
        facts.failures.append(f"a completion ended early: {type(error).__name__}")
    finally:
        writer.transport.abort()


def _request(plan: LoadPlan, model: str, ask_orca: bool) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "prompt": "Count the stars, one after the other. " * 8,
            "max_tokens": plan.max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    orca = f"{ORCA_REQUEST_HEADER}: TEXT\r\n" if ask_orca else ""
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {plan.address}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\n{orca}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _header(head: bytes, name: str) -> str | None:
    for line in head.decode("latin-1").split("\r\n")[1:]:
        key, _, value = line.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return None

"""The demo's requests: chats at a rising rate, and what is remembered of each."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from zerohop_console.demo.client import Client, Outcome, post
from zerohop_console.demo.envoy import SERVED_BY

#: requests in flight at which sending pauses: beyond it we would only measure ourselves
_IN_FLIGHT_LIMIT = 400
#: share of answers after which the drain happens: a little past the middle, so that its effect can be told from the
#: slow server's
HALF_WAY = 0.6
_QUESTIONS = (
    "What does a picker know that round robin does not?",
    "Why is the age of a value as important as the value?",
    "How long does a request wait behind others?",
    "Which server holds the prefix of this prompt?",
)


@dataclass(frozen=True, slots=True)
class Ramp:
    """`count` requests whose rate rises from `first_rate` to `last_rate` (requests/s)."""

    count: int
    first_rate: float
    last_rate: float

    def send_times_s(self) -> Iterator[float]:
        """Yield when each request is sent, in seconds after the start."""
        moment = 0.0
        for index in range(self.count):
            yield moment
            share = index / max(1, self.count - 1)
            moment += 1.0 / (self.first_rate + (self.last_rate - self.first_rate) * share)

    @property
    def duration_s(self) -> float:
        """Seconds from the first request to the last."""
        return max(self.send_times_s())


@dataclass(frozen=True, slots=True)
class Sent:
    """One finished request: when it was sent (CLOCK_MONOTONIC ns), how it went, and the name of its server.

    `age_ms` is the age of that server's load values when the request was sent, None when unknown.
    """

    sent_ns: int
    outcome: Outcome
    server: str | None
    age_ms: float | None


@dataclass(slots=True)
class Load:
    """Sends the ramp through one port; `finished` grows while it runs."""

    port: int
    #: server names by address
    names: Mapping[str, str]
    ramp: Ramp
    model: str
    max_tokens: tuple[int, int] = (40, 72)
    #: called as each request is sent: the age (ms) of the load values by server name
    ages_ms: Callable[[], dict[str, float]] = dict
    finished: list[Sent] = field(default_factory=list)
    sent: int = 0
    in_flight: int = 0
    half_done: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Send everything and wait for every answer."""
        client = Client("127.0.0.1", self.port)
        dice = random.Random(7)
        start_s = time.perf_counter()
        room = asyncio.Semaphore(_IN_FLIGHT_LIMIT)
        try:
            async with asyncio.TaskGroup() as requests:
                for index, moment_s in enumerate(self.ramp.send_times_s()):
                    await asyncio.sleep(max(0.0, start_s + moment_s - time.perf_counter()))
                    await room.acquire()
                    request = chat(self.model, index, dice.randint(*self.max_tokens))
                    requests.create_task(self._one(client, request, room))
        finally:
            client.close()

    async def _one(self, client: Client, request: bytes, room: asyncio.Semaphore) -> None:
        sent_ns, ages_ms = time.monotonic_ns(), self.ages_ms()
        self.sent += 1
        self.in_flight += 1
        try:
            outcome = await client.send(request)
        finally:
            self.in_flight -= 1
            room.release()
        server = self.names.get((outcome.headers or {}).get(SERVED_BY, ""))
        self.finished.append(Sent(sent_ns, outcome, server, ages_ms.get(server or "")))
        if len(self.finished) >= self.ramp.count * HALF_WAY:
            self.half_done.set()


def chat(model: str, index: int, max_tokens: int) -> bytes:
    """Return a streamed chat request; each has another user and question."""
    question = _QUESTIONS[index % len(_QUESTIONS)]
    body = {
        "model": model,
        "stream": True,
        "max_tokens": max_tokens,
        "messages": [
            {"role": "system", "content": f"You are the assistant of user {index}. " + "Answer briefly. " * 12},
            {"role": "user", "content": question},
        ],
    }
    return post("/v1/chat/completions", body)


def small(model: str, *, real: bool) -> bytes:
    """Return a request that a server answers at once: what it takes is the way."""
    question = "how long does the way take?"
    if real:
        return post("/tokenize", {"model": model, "prompt": question})
    return post("/v1/embeddings", {"model": model, "input": question})


async def probe(
    port: int, other_port: int, request: bytes, pairs: int, limit_s: float = 4.0
) -> tuple[list[float], list[float]]:
    """Return the latencies (s) of the same small request through two ports, in turn, while nothing else runs.

    On a busy machine it is fewer pairs: whatever fits into `limit_s`.
    """
    end_s = time.perf_counter() + limit_s
    clients = Client("127.0.0.1", port), Client("127.0.0.1", other_port)
    latencies: tuple[list[float], list[float]] = ([], [])
    try:
        for turn in range(pairs + 20):
            if time.perf_counter() > end_s and latencies[0] and latencies[1]:
                break
            for client, seen in zip(clients, latencies, strict=True):
                outcome = await client.send(request)
                if turn >= 20 and outcome.ok:
                    seen.append(outcome.total_s)
    finally:
        for client in clients:
            client.close()
    return latencies

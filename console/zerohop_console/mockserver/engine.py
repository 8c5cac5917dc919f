"""A continuous-batching engine that computes nothing: it admits, prefills in chunks, decodes by steps, and preempts."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from zerohop_console.mockserver.page import Measurements
from zerohop_console.mockserver.prefix_cache import PrefixCache
from zerohop_console.mockserver.timing import StepTime


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Sizes of the engine; the names are vLLM's."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    max_model_len: int = 32_768
    block_size: int = 16
    num_gpu_blocks: int = 4_000
    max_loras: int = 2
    step_time: StepTime = field(default_factory=StepTime)


#: called after a step with the request, how many new tokens it has, and why it ended (None while it goes on)
OnTokens = Callable[["EngineRequest", int, str | None], None]


@dataclass(slots=True, eq=False)
class EngineRequest:
    """One request inside the engine. Times are CLOCK_MONOTONIC seconds."""

    prompt: bytes
    prompt_tokens: int
    max_tokens: int
    adapter: str | None
    on_tokens: OnTokens
    arrived_s: float = 0.0
    scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    computed_tokens: int = 0
    cached_tokens: int = 0
    generated: int = 0
    blocks: int = 0
    preemptions: int = 0
    ended: bool = False


class Engine:
    """Steps for as long as it has requests. Everything happens in one event loop."""

    def __init__(self, settings: EngineSettings, measurements: Measurements) -> None:
        self.settings = settings
        self.slow_factor = 1.0
        self.frozen = False
        self._measurements = measurements
        self._cache = PrefixCache(settings.num_gpu_blocks, settings.block_size)
        self._waiting: deque[EngineRequest] = deque()
        self._running: list[EngineRequest] = []
        self._used_blocks = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; its `on_tokens` is called after each step that gave it something."""
        request.arrived_s = time.monotonic()
        self._waiting.append(request)
        self._idle.clear()
        self._wake.set()

    def abort(self, request: EngineRequest) -> None:
        """Drop a request whose client has left. Unknown and ended ones are ignored."""
        if request.ended:
            return
        request.ended = True
        if request in self._running:
            self._running.remove(request)
            self._free(request)
        else:
            self._waiting.remove(request)
        self._measurements.finished["abort"] += 1
        self._measure()

    @property
    def unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self._waiting) + len(self._running)

    async def drained(self) -> None:
        """Return once there is no request left."""
        while self.unfinished:
            await self._idle.wait()

    def reset_prefix_cache(self) -> None:
        """Forget all cached blocks."""
        self._cache.clear()

    async def run(self) -> None:
        """Step until cancelled."""
        while True:
            if not self.unfinished:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
                self._idle.clear()
            chunks = self._schedule()
            self._measure()
            await asyncio.sleep(self._step_s(chunks) * self.slow_factor)
            self._finish_step(chunks)
            self._measure()

    def _schedule(self) -> list[tuple[EngineRequest, int]]:
        """Admit what fits; return how many prompt tokens this step prefills for each running request (0: decode)."""
        budget = self.settings.max_num_batched_tokens
        chunks: list[tuple[EngineRequest, int]] = []
        for request in list(self._running):
            # A request before it in this loop may have preempted it.
            if request not in self._running or not self._grow(request):
                continue
            chunk = min(request.prompt_tokens - request.computed_tokens, budget)
            budget -= max(chunk, 1)
            chunks.append((request, chunk))
        chunks = [pair for pair in chunks if pair[0] in self._running]
        passed_over: list[EngineRequest] = []
        while self._waiting and budget > 0 and len(self._running) < self.settings.max_num_seqs:
            request = self._waiting.popleft()
            if not self._adapter_fits(request):
                passed_over.append(request)
                continue
            if not self._admit(request):
                self._waiting.appendleft(request)
                break
            chunk = min(request.prompt_tokens - request.computed_tokens, budget)
            budget -= chunk
            chunks.append((request, chunk))
        self._waiting.extendleft(reversed(passed_over))
        return chunks

    def _admit(self, request: EngineRequest) -> bool:
        blocks = -(-(request.prompt_tokens + 1) // self.settings.block_size)
        if self._used_blocks + blocks > self.settings.num_gpu_blocks and self._running:
            return False
        request.cached_tokens = self._cache.match(request.adapter or "", request.prompt)
        request.computed_tokens = request.cached_tokens
        request.blocks = blocks
        self._used_blocks += blocks
        if not request.scheduled_s:
            request.scheduled_s = time.monotonic()
        self._running.append(request)
        self._measurements.prefix_queries += request.prompt_tokens
        self._measurements.prefix_hits += request.cached_tokens
        return True

    def _adapter_fits(self, request: EngineRequest) -> bool:
        if request.adapter is None:
            return True
        active = {running.adapter for running in self._running if running.adapter is not None}
        return request.adapter in active or len(active) < self.settings.max_loras

    def _grow(self, request: EngineRequest) -> bool:
        """Make room for the next token, preempting the youngest request if need be; False if that was this one."""
        needed = -(-(request.prompt_tokens + request.generated + 1) // self.settings.block_size)
        while needed > request.blocks:
            if self._used_blocks < self.settings.num_gpu_blocks or len(self._running) == 1:
                request.blocks += 1
                self._used_blocks += 1
                continue
            victim = self._running.pop()
            self._free(victim)
            victim.computed_tokens, victim.preemptions = 0, victim.preemptions + 1
            self._measurements.preemptions += 1
            self._waiting.appendleft(victim)
            if victim is request:
                return False
        return request in self._running

    def _step_s(self, chunks: list[tuple[EngineRequest, int]]) -> float:
        decoding = [request for request, chunk in chunks if not chunk]
        return self.settings.step_time.step_s(
            prefill_tokens=sum(chunk for _, chunk in chunks),
            decodes=len(decoding),
            prefills=len(chunks) - len(decoding),
            context_tokens=sum(request.prompt_tokens + request.generated for request in decoding),
        )

    def _finish_step(self, chunks: list[tuple[EngineRequest, int]]) -> None:
        now_s = time.monotonic()
        step_tokens = 0
        for request, chunk in chunks:
            if request.ended:
                continue
            request.computed_tokens += chunk
            step_tokens += max(chunk, 1)
            if request.computed_tokens >= request.prompt_tokens:
                self._emit(request, now_s)
        self._measurements.iteration_tokens.observe(step_tokens)
        self._measurements.steps += 1

    def _emit(self, request: EngineRequest, now_s: float) -> None:
        measured = self._measurements
        request.generated += 1
        measured.generation_tokens += 1
        if request.generated == 1:
            request.first_token_s = now_s
            measured.prompt_tokens += request.prompt_tokens
            measured.time_to_first_token.observe(now_s - request.arrived_s)
        else:
            measured.inter_token_latency.observe(now_s - request.last_token_s)
        request.last_token_s = now_s
        reason = "length" if request.generated >= request.max_tokens else None
        if reason is not None:
            request.ended = True
            self._running.remove(request)
            self._free(request)
            measured.finish(request, now_s, reason)
        request.on_tokens(request, 1, reason)

    def _free(self, request: EngineRequest) -> None:
        self._used_blocks -= request.blocks
        request.blocks = 0

    def _measure(self) -> None:
        """Set the gauges, as an engine does once a step."""
        if self.frozen:
            return
        measured = self._measurements
        measured.running = len(self._running)
        measured.waiting = len(self._waiting)
        measured.kv_cache_usage = min(1.0, self._used_blocks / self.settings.num_gpu_blocks)
        measured.set_adapters(
            (request.adapter for request in self._running), (request.adapter for request in self._waiting)
        )

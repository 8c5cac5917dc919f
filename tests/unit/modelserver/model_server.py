"""A model server that listens on a socket and says what a test tells it to, and a reader of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from support.raw_server import RawServer, http
from zerohop_agent.endpoints import EndpointSpec
from zerohop_agent.modelserver.reader import ModelServerReader
from zerohop_agent.modelserver.settings import ModelServerSettings
from zerohop_agent.signals import Signals, SourceError

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

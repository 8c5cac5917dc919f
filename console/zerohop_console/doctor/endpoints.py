"""Endpoints: reachable from here, with a metrics page that the agent understands."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from zerohop_agent.endpoints import EndpointSpec
from zerohop_agent.modelserver.reader import ModelServerReader
from zerohop_agent.modelserver.settings import ModelServerSettings
from zerohop_agent.signals import Signals, SourceError
from zerohop_console.doctor.finding import Finding, fail, ok, skip, warn
from zerohop_snapshot.layout import UnhealthyReason

_TIMEOUT_S = 5.0
_MOST = 64
_FIXES = {
    UnhealthyReason.REFUSED: "nothing listens there: is the port that of the model server (targetPorts of the pool)?",
    UnhealthyReason.TIMEOUT: "a NetworkPolicy between agent and model server, or a server that hangs",
    UnhealthyReason.RESET: "a mesh with mTLS in between, or a server that speaks TLS only",
    UnhealthyReason.NOT_METRICS: "this is not a metrics page: set --model-server-path and --model-server-port",
    UnhealthyReason.ENGINE_UNKNOWN: "no engine that we know prints such a page: write a mapping (docs/engines.md)",
    UnhealthyReason.HTTP_STATUS: "switch the metrics page on (SGLang: --enable-metrics), or set --model-server-path",
}


async def check(specs: Sequence[EndpointSpec], scrape_interval_ns: int) -> AsyncIterator[Finding]:
    """Findings about each endpoint, all asked at once."""
    if not specs:
        yield skip("endpoints", "no endpoint to ask; name some with --endpoint")
        return
    if len(specs) > _MOST:
        yield skip("endpoints", f"only the first {_MOST} of {len(specs)} endpoints are asked")
    for finding in await asyncio.gather(*(_one(spec, scrape_interval_ns) for spec in specs[:_MOST])):
        yield finding


async def _one(spec: EndpointSpec, scrape_interval_ns: int) -> Finding:
    """What one reading of the page gives: the agent's own reader, once."""
    answer: asyncio.Future[Signals | SourceError] = asyncio.get_running_loop().create_future()

    def good(_: EndpointSpec, signals: Signals, __: int, ___: int) -> None:
        if not answer.done():
            answer.set_result(signals)

    def bad(_: EndpointSpec, error: SourceError) -> None:
        if not answer.done():
            answer.set_result(error)

    reader = ModelServerReader(spec, ModelServerSettings(scrape_interval_ns=scrape_interval_ns), good, bad)
    task = asyncio.create_task(reader.run())
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            result = await answer
    except TimeoutError:
        return fail(
            "endpoints", f"{spec.address} does not answer within {_TIMEOUT_S:g} s", _FIXES[UnhealthyReason.TIMEOUT]
        )
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ExceptionGroup):
            await task
    if isinstance(result, SourceError):
        return fail("endpoints", f"{spec.address}: {result}", _FIXES.get(result.reason, "look at the server's log"))
    known = {
        "waiting": result.waiting, "running": result.running, "kv_cache_usage": result.kv_cache_usage,
    }  # fmt: skip
    missing = [name for name, value in known.items() if value is None]
    engine = reader.engine or "unknown engine"
    if missing:
        return warn(
            "endpoints",
            f"{spec.address}: a page of {engine} without {', '.join(missing)}",
            "a mapping can say where they stand (docs/engines.md)",
        )
    return ok("endpoints", f"{spec.address}: {engine}, waiting {result.waiting:g}, running {result.running:g}")

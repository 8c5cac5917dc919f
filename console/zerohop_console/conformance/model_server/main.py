"""The command `zerohop conformance model-server`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from zerohop_agent.modelserver.client import Client, tls_context
from zerohop_agent.modelserver.engines import ENGINES
from zerohop_agent.modelserver.page import PageReader
from zerohop_agent.modelserver.reader import METRICS_ACCEPT
from zerohop_agent.modelserver.served import parse_models
from zerohop_agent.signals import SourceError
from zerohop_console.conformance.model_server.facts import Facts, Sample
from zerohop_console.conformance.model_server.items import PROTOCOL_VERSION, judge
from zerohop_console.conformance.model_server.load import LoadPlan, run_load
from zerohop_console.conformance.report import Level, Report, as_json, as_junit, print_table
from zerohop_process.address import Address
from zerohop_process.errors import ConfigError
from zerohop_process.errors import reason as reason_of

SUITE = "zerohop-conformance-model-server"
_REQUIRED = {"must": (Level.MUST,), "should": (Level.MUST, Level.SHOULD)}
_READINGS = 5


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server is."""

    url: str
    address: Address
    metrics: Address
    https: bool
    path: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("url", metavar="URL", help="the server: http://HOST:PORT, HOST:PORT, or with the metrics path")
    parser.add_argument("--engine", metavar="NAME", help="the engine it is said to be; otherwise found from its page")
    parser.add_argument("--protocol", metavar="VERSION", default=PROTOCOL_VERSION, help="version of the protocol")
    parser.add_argument("--metrics-port", metavar="PORT", type=int, help="port of the metrics page, if another")
    parser.add_argument("--load", action="store_true", help="send completions and check that the gauges move")
    parser.add_argument("--requests", metavar="N", type=int, default=12, help="completions at once with --load")
    parser.add_argument("--max-tokens", metavar="N", type=int, default=128, help="tokens of each with --load")
    parser.add_argument("--model", metavar="NAME", help="model to ask for with --load; otherwise all that are served")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=5.0, help="longest wait for one page")
    parser.add_argument("--require", choices=sorted(_REQUIRED), default="must", help="levels whose failures count")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - is standard output")
    parser.add_argument("--junit", metavar="FILE", help="write the report as JUnit XML")


def run(args: argparse.Namespace) -> int:
    """Run the suite; 0 when all required items pass, else 1. Raises: ConfigError."""
    target = _target(args)
    if args.protocol != PROTOCOL_VERSION:
        raise ConfigError(
            f"--protocol: version {args.protocol!r} is not known; this suite is version {PROTOCOL_VERSION}"
        )
    if args.engine is not None and args.engine not in ENGINES:
        raise ConfigError(f"--engine: {args.engine!r} is not known; known are {', '.join(ENGINES)}")
    if not (1 <= args.requests <= 1024 and 1 <= args.max_tokens <= 100_000 and args.timeout > 0):
        raise ConfigError("--requests, --max-tokens and --timeout must be positive (at most 1024 requests)")
    facts = asyncio.run(_look(target, args))
    report = Report(SUITE, PROTOCOL_VERSION, target.url, judge(facts), _shown(facts))
    if args.json != "-":
        print_table(report, Console(width=max(100, Console().width)))
    _write(args.json, as_json(report))
    _write(args.junit, as_junit(report))
    return 1 if report.failed(_REQUIRED[args.require]) else 0


def _target(args: argparse.Namespace) -> Target:
    text = args.url if "://" in args.url else f"http://{args.url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"URL: {args.url!r} is no address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"URL: {args.url!r} is no address; write http://HOST:PORT")
    port = port or (443 if parts.scheme == "https" else 80)
    if args.metrics_port is not None and not 0 < args.metrics_port < 65536:
        raise ConfigError(f"--metrics-port: {args.metrics_port} is no port")
    address = Address(parts.hostname, port)
    metrics = Address(parts.hostname, args.metrics_port or port)
    path = parts.path if parts.path not in ("", "/") else None
    return Target(f"{parts.scheme}://{address}", address, metrics, parts.scheme == "https", path)


async def _look(target: Target, args: argparse.Namespace) -> Facts:
    mapping = ENGINES.get(args.engine or "")
    facts = Facts(args.engine, target.path or (mapping.metrics_path if mapping else "/metrics"))
    tls = tls_context(verify=False) if target.https else None
    client = Client(target.metrics, tls=tls)
    page = PageReader(args.engine)
    try:
        await _look_at_page(client, page, facts, args.timeout)
        await _look_beside(Client(target.address, tls=tls), facts, args.timeout)
        if args.load and facts.signals is not None:
            models = [args.model] if args.model else list(facts.models.names if facts.models else ())
            if not models:
                raise ConfigError("--load: the server lists no model; name one with --model")

            async def read_page(started_s: float) -> Sample | None:
                try:
                    fetched = await client.get(facts.path, accept=METRICS_ACCEPT, timeout_s=args.timeout)
                    signals = page.read(fetched.response.body, fetched.response.headers.get("content-type", ""))
                except SourceError:
                    return None
                took_s = (fetched.received_ns - fetched.requested_ns) / 1e9
                return Sample(time.monotonic() - started_s, took_s, signals)

            plan = LoadPlan(target.address, tls, models, facts.adapters, args.requests, args.max_tokens, 120.0)
            facts.load = await run_load(plan, read_page)
    finally:
        client.close()
    return facts


async def _look_at_page(client: Client, page: PageReader, facts: Facts, timeout_s: float) -> None:
    for _ in range(_READINGS):
        try:
            fetched = await client.get(facts.path, accept=METRICS_ACCEPT, timeout_s=timeout_s)
        except SourceError as error:
            facts.error = error
            return
        response = fetched.response
        facts.status, facts.size_bytes = response.status, len(response.body)
        facts.content_type = response.headers.get("content-type", "")
        if response.status != 200:
            return
        facts.times_s.append((fetched.received_ns - fetched.requested_ns) / 1e9)
        facts.connections = client.connections
        try:
            facts.signals = page.read(response.body, facts.content_type)
        except SourceError as error:
            facts.error = error
            return
        facts.mapping, facts.multi_process = page.engine, page.multi_process


async def _look_beside(client: Client, facts: Facts, timeout_s: float) -> None:
    try:
        fetched = await client.get("/v1/models", accept="application/json", timeout_s=timeout_s)
        if fetched.response.status == 200:
            facts.models = parse_models(fetched.response.body)
        facts.models_found = f"GET /v1/models answers {fetched.response.status}"
    except SourceError as error:
        facts.models_found = error.detail
    try:
        facts.health_status = (await client.get("/health", accept="*/*", timeout_s=timeout_s)).response.status
    except SourceError:
        facts.health_status = None
    client.close()


def _shown(facts: Facts) -> dict[str, object]:
    shown: dict[str, object] = {"engine": facts.mapping.name if facts.mapping else None, "page bytes": facts.size_bytes}
    if facts.multi_process:
        shown["processes"] = "several: the page is gathered from files, so it is read once a second"
    return shown


def _write(path: str | None, text: str) -> None:
    if path is None:
        return
    if path == "-":
        sys.stdout.write(text + "\n")
        return
    try:
        Path(path).write_text(text + "\n")
    except OSError as error:
        raise ConfigError(reason_of(error, path)) from None

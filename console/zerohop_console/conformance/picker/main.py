"""The command `zerohop conformance picker`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fnmatch
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
from rich.console import Console

from zerohop_console.conformance.picker.cases import CASES
from zerohop_console.conformance.picker.grpc_target import GrpcTarget, Health, Security, channel
from zerohop_console.conformance.picker.health import HEALTH_CASES, run_health
from zerohop_console.conformance.picker.report import as_json, as_junit, print_table
from zerohop_console.conformance.picker.runner import Result, Verdict, run_cases
from zerohop_console.conformance.picker.script import Level, Pool
from zerohop_process.address import Address, Listen
from zerohop_process.errors import ConfigError

_REQUIRED = {"must": (Level.MUST,), "should": (Level.MUST, Level.SHOULD), "all": tuple(Level)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("target", metavar="TARGET", help="where the picker serves ext-proc: HOST:PORT or unix:PATH")
    parser.add_argument("--health", metavar="HOST:PORT", help="where it serves the health service; none: not tested")
    parser.add_argument("--health-tls", action="store_true", help="the health service speaks TLS, too")
    parser.add_argument(
        "--pool",
        metavar="ADDR,ADDR,...",
        required=True,
        help="addresses (ip:port) that the picker chooses from, all ready",
    )
    parser.add_argument(
        "--tls", action="store_true", help="connect with TLS; without --tls-ca any certificate is taken"
    )
    parser.add_argument("--tls-ca", metavar="FILE", type=Path, help="certificates to trust")
    parser.add_argument(
        "--tls-cert", metavar="FILE", type=Path, help="client certificate, for a picker that asks for one"
    )
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="its key")
    parser.add_argument("--tls-server-name", metavar="NAME", help="name that the picker's certificate is for")
    parser.add_argument(
        "--steering",
        action="store_true",
        help="the picker runs with the conformance headers (test-epp-endpoint-selection)",
    )
    parser.add_argument("--only", metavar="PATTERN", default="*", help="cases to run, such as 'subset/*'")
    parser.add_argument("--require", choices=sorted(_REQUIRED), default="all", help="levels whose failures count")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=3.0, help="longest wait for one reply")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - is standard output")
    parser.add_argument("--junit", metavar="FILE", help="write the report as JUnit XML")


def run(args: argparse.Namespace) -> int:
    """Runs the suite: 0 all that counts passed, 1 something failed.

    Raises:
        ConfigError: the arguments make no sense, or the picker cannot be reached at all.
    """
    pool = _pool(args.pool)
    results = asyncio.run(_run(args, pool))
    if not results:
        raise ConfigError(f"--only {args.only}: no case has such a name")
    _write(args, results)
    failed = [r for r in results if r.verdict is Verdict.FAIL and r.level in _REQUIRED[args.require]]
    return 1 if failed else 0


def _write(args: argparse.Namespace, results: list[Result]) -> None:
    target = str(args.target)
    if args.json != "-":
        print_table(results, Console(soft_wrap=not sys.stdout.isatty()))
    for where, render in ((args.json, as_json), (args.junit, as_junit)):
        if where == "-":
            sys.stdout.write(render(results, target) + "\n")
        elif where is not None:
            try:
                Path(where).write_text(render(results, target) + "\n")
            except OSError as error:
                raise ConfigError(f"{where}: cannot be written: {error.strerror}") from None


def _pool(text: str) -> Pool:
    pool = tuple(Address.parse(part, "--pool") for part in text.split(",") if part.strip())
    if not pool:
        raise ConfigError("--pool: name at least one address")
    return pool


async def _run(args: argparse.Namespace, pool: Pool) -> list[Result]:
    async with _channels(args) as (process, health):
        target = GrpcTarget(process)
        chosen = [case for case in CASES if fnmatch.fnmatch(case.name, args.only)]
        results = await run_cases(chosen, target, pool, timeout_s=args.timeout, steering=args.steering)
        if any(fnmatch.fnmatch(case.name, args.only) for case in HEALTH_CASES):
            answers = await run_health(None if health is None else Health(health, args.timeout))
            results += [result for result in answers if fnmatch.fnmatch(result.name, args.only)]
    return results


@contextlib.asynccontextmanager
async def _channels(args: argparse.Namespace) -> AsyncIterator[tuple[grpc.aio.Channel, grpc.aio.Channel | None]]:
    listen = Listen.parse(args.target, "TARGET")
    tls = args.tls or args.tls_ca is not None
    security = Security(tls, args.tls_ca, args.tls_cert, args.tls_key, args.tls_server_name)
    shown = None
    if tls and args.tls_ca is None:
        shown, security = await _trust_what_is_shown(listen, security)
    async with contextlib.AsyncExitStack() as stack:
        process = await stack.enter_async_context(channel(str(args.target), security, shown=shown))
        await _reach(process, args.target, args.timeout)
        health = None
        if args.health is not None:
            Address.parse(args.health, "--health")
            plain = channel(args.health, security if args.health_tls else Security(), shown=shown)
            health = await stack.enter_async_context(plain)
        yield process, health


async def _reach(on: grpc.aio.Channel, target: str, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(on.channel_ready(), max(timeout_s, 3.0))
    except TimeoutError:
        raise ConfigError(f"{target}: no picker answers there (is it TLS? then add --tls)") from None


async def _trust_what_is_shown(listen: Listen, security: Security) -> tuple[bytes, Security]:
    """The certificate that the picker shows, and the name it is for: pickers sign their own by default."""
    if listen.address is None:
        raise ConfigError("TARGET: TLS over a Unix socket needs --tls-ca")
    host, port = listen.address.host, listen.address.port
    try:
        text = await asyncio.to_thread(ssl.get_server_certificate, (host, port), timeout=5)
    except OSError as error:
        raise ConfigError(f"{listen.address}: no TLS there: {error}") from None
    name = security.server_name or _first_name(text)
    return text.encode(), Security(
        tls=True, certificate_file=security.certificate_file, key_file=security.key_file, server_name=name
    )


def _first_name(certificate: str) -> str | None:
    """A name that the certificate is for; None where it names none."""
    from cryptography import x509

    parsed = x509.load_pem_x509_certificate(certificate.encode())
    try:
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    dns = names.get_values_for_type(x509.DNSName)
    return dns[0] if dns else None

"""`zerohop doctor`: runs the checks that fit this place and prints what each says."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from zerohop_console.doctor.finding import Finding, Level
from zerohop_process.errors import ConfigError

CHECKS = ("shm", "nvml", "kubelet", "cluster", "endpoints", "agent", "gateway")
_MARKS = {Level.OK: "ok", Level.SKIP: "--", Level.WARN: "warn", Level.FAIL: "FAIL"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `zerohop doctor`."""
    add = parser.add_argument
    add("--json", action="store_true", help="print a JSON object instead of lines")
    add("--only", action="append", choices=CHECKS, default=[], help="run only this check; may be repeated")
    add("--shm-dir", type=Path, default=Path("/dev/shm/zerohop"), metavar="DIR", help="the agent's directory")  # noqa: S108
    add("--endpoint", action="append", default=[], metavar="HOST:PORT", help="a model server to ask; may be repeated")
    add("--agent-config", type=Path, default=None, metavar="FILE", help="configuration file of an agent to check")
    add("--agent-args", default="", metavar="WORDS", help="an agent's command line, in one argument, to check")
    add("--pod-resources-socket", type=Path, default=None, metavar="PATH", help="the kubelet's PodResources socket")
    add("--envoy-admin", default=None, metavar="HOST:PORT", help="admin page of a gateway, such as 127.0.0.1:15000")
    add("--config-dump", type=Path, default=None, metavar="FILE", help="a gateway's saved /config_dump")
    from zerohop_agent.discovery import flags as discovery_flags

    discovery_flags.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the findings; 0 when nothing failed, 1 otherwise."""
    findings: list[Finding] = []
    wanted = tuple(args.only) or CHECKS
    stream = _findings(args, wanted)
    if args.json:
        findings = list(stream)
        failed = sum(finding.level is Level.FAIL for finding in findings)
        json.dump({"findings": [each.as_json() for each in findings], "failed": failed}, sys.stdout, indent=2)
        print()
        return 1 if failed else 0
    for finding in stream:
        findings.append(finding)
        _print(finding)
    failed = sum(finding.level is Level.FAIL for finding in findings)
    warned = sum(finding.level is Level.WARN for finding in findings)
    print(f"\n{failed} failed, {warned} warnings, {sum(each.level is Level.OK for each in findings)} fine")
    return 1 if failed else 0


def _findings(args: argparse.Namespace, wanted: Iterable[str]) -> Iterator[Finding]:
    """Runs the checks in order; the later ones use what the earlier ones found."""
    # Each check brings packages of its own, which the others should not pay for.
    from zerohop_console.doctor import machine, shared_memory

    steps: dict[str, Callable[[], Iterable[Finding]]] = {
        "shm": lambda: shared_memory.check(args.shm_dir),
        "nvml": machine.check_nvml,
        "kubelet": lambda: machine.run_async(machine.check_kubelet(args.pod_resources_socket, args.kubelet_socket)),
        "cluster": lambda: _cluster(args),
        "endpoints": lambda: _endpoints(args),
        "agent": lambda: _agent(args),
        "gateway": lambda: _gateway(args),
    }
    for name in wanted:
        yield from steps[name]()


def _cluster(args: argparse.Namespace) -> list[Finding]:
    from zerohop_agent.discovery.flags import from_arguments
    from zerohop_console.doctor import machine
    from zerohop_console.doctor.finding import skip

    try:
        from zerohop_console.doctor import cluster
    except ModuleNotFoundError as error:
        return [skip("api", f"the Python package {error.name!r} is missing; run: pip install 'zerohop[kubernetes]'")]
    # A doctor looks at the whole pool unless it is told a node.
    args.scope = "node" if args.node_name else "pool"
    found = cluster.Cluster(from_arguments(args))
    findings = machine.run_async(found.check())
    args.found_endpoints = found.endpoints
    return findings


def _endpoints(args: argparse.Namespace) -> list[Finding]:
    from zerohop_agent.endpoints import EndpointSpec
    from zerohop_console.doctor import endpoints, machine
    from zerohop_process.address import Address

    specs = list(getattr(args, "found_endpoints", None) or [])
    for text in args.endpoint:
        address = Address.parse(text, "--endpoint")
        specs.append(
            EndpointSpec(
                key=str(address),
                address=address,
                name=str(address),
                metrics_scheme=args.model_server_scheme,
                metrics_path=args.model_server_path,
                metrics_port=args.model_server_port,
            )
        )
    return machine.run_async(endpoints.check(specs, 1_000_000_000))


def _agent(args: argparse.Namespace) -> Iterator[Finding]:
    """An agent's configuration: what it refuses, and what it warns of."""
    from zerohop_agent import config
    from zerohop_console.doctor.finding import fail, ok, skip, warn

    words = args.agent_args.split()
    if args.agent_config is not None:
        words += ["--config", str(args.agent_config)]
    if not words:
        yield skip("agent", "no agent configuration to look at; give --agent-config FILE or --agent-args '...'")
        return
    parser = _Parser(allow_abbrev=False)
    config.add_arguments(parser)
    try:
        parsed = config.from_arguments(parser.parse_args(words))
    except ConfigError as error:
        yield fail("agent", str(error), "correct that setting")
        return
    concerns = config.warnings(parsed)
    for concern in concerns:
        yield warn("agent", concern, "change one of the two")
    if not concerns:
        yield ok("agent", "its intervals fit its bounds")


def _gateway(args: argparse.Namespace) -> Iterator[Finding]:
    from zerohop_console.doctor import gateway

    return gateway.check(args.envoy_admin, args.config_dump)


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes are findings."""

    def error(self, message: str) -> Any:
        """Raises: ConfigError."""
        raise ConfigError(message)


def _print(finding: Finding) -> None:
    print(f"{_MARKS[finding.level]:<5}{finding.check:<10}{finding.message}")
    if finding.fix and finding.level in (Level.WARN, Level.FAIL):
        print(f"{'':15}-> {finding.fix}")

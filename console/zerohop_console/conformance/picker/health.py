"""Cases of the health service: what Kubernetes' probes, gateways and Envoy's health checks ask."""

from __future__ import annotations

import time
from dataclasses import dataclass

from zerohop_console.conformance.picker.grpc_target import Health
from zerohop_console.conformance.picker.runner import Result, Verdict
from zerohop_console.conformance.picker.script import Level


@dataclass(frozen=True)
class HealthCase:
    """A question and the answers that are right."""

    name: str
    level: Level
    demands: str
    source: str
    method: str
    service: str
    right: tuple[str, ...]


_EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"


def _check(name: str, service: str, level: Level, source: str) -> HealthCase:
    demands = f"Check({service!r}) is SERVING while the picker has endpoints."
    return HealthCase(f"health/{name}", level, demands, source, "check", service, ("SERVING",))


HEALTH_CASES = (
    _check("overall", "", Level.MUST, "gRPC health checking protocol"),
    _check("liveness", "liveness", Level.SHOULD, "llm-d; LDR PR#2900: its own question"),
    _check("readiness", "readiness", Level.SHOULD, "llm-d"),
    _check("ext-proc", _EXT_PROC, Level.SHOULD, "llm-d; Envoy's health checks ask it (GIE#240)"),
    _check("inference-extension", "inference-extension", Level.SHOULD, "the Gateway conformance suite's probes"),
    HealthCase(
        "health/unknown-service",
        Level.MUST,
        "A name that is not known is not SERVING.",
        "gRPC health checking protocol: NOT_FOUND",
        "check",
        "zerohop.no.such.service",
        ("NOT_FOUND", "SERVICE_UNKNOWN", "NOT_SERVING"),
    ),
    HealthCase(
        "health/watch",
        Level.OURS,
        "Watch answers at once with the status.",
        "gRPC health checking protocol; llm-d does not implement it",
        "watch",
        "readiness",
        ("SERVING",),
    ),
    HealthCase(
        "health/list",
        Level.OURS,
        "List names the services.",
        "gRPC health checking protocol",
        "list",
        _EXT_PROC,
        ("listed",),
    ),
)


async def run_health(health: Health | None) -> list[Result]:
    """Results of the health cases; skips without a health address."""
    return [await _run(case, health) for case in HEALTH_CASES]


async def _run(case: HealthCase, health: Health | None) -> Result:
    started = time.monotonic()
    if health is None:
        verdict, detail = Verdict.SKIP, "needs --health"
    else:
        answer = await _ask(case, health)
        verdict = Verdict.PASS if answer in case.right else Verdict.FAIL
        detail = "" if verdict is Verdict.PASS else f"the answer is {answer}, not {' or '.join(case.right)}"
    return Result(case.name, case.level, case.demands, case.source, verdict, detail, time.monotonic() - started)


async def _ask(case: HealthCase, health: Health) -> str:
    if case.method == "check":
        return await health.check(case.service)
    if case.method == "watch":
        return await health.first_watched(case.service)
    listed = await health.listed()
    if isinstance(listed, str):
        return listed
    return "listed" if case.service in listed else f"a list of {', '.join(listed)}"

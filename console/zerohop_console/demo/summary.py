"""What a demo ends with: numbers, as JSON and as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zerohop_console.demo.box import Server
from zerohop_console.demo.load import Sent

if TYPE_CHECKING:
    from rich.console import RenderableType

#: requests from which on shares say something
SHARES_FROM = 200


@dataclass(frozen=True, slots=True)
class Result:
    """All that a run has measured. Latencies in seconds, ages in milliseconds."""

    finished: Sequence[Sent]
    servers: Sequence[Server]
    picks: dict[str, int]
    #: names of drained servers -> CLOCK_MONOTONIC ns at which the snapshot showed the drain
    drained_ns: dict[str, int]
    picked_s: Sequence[float]
    round_robin_s: Sequence[float]
    duration_s: float


def summarise(result: Result) -> dict[str, Any]:
    """Return the summary as JSON-ready values; unknown is None."""
    good = [sent for sent in result.finished if sent.outcome.ok]
    bad = [sent for sent in result.finished if not sent.outcome.ok]
    served = Counter(sent.server for sent in good)
    total_picks = sum(result.picks.values())
    summary = {
        "requests": len(result.finished),
        "errors": len(bad),
        "error_samples": [what for what, _ in Counter(sent.outcome.complaint() for sent in bad).most_common(5)],
        "duration_s": round(result.duration_s, 2),
        "endpoints": [
            {
                "name": server.name,
                "address": str(server.address),
                "role": server.role,
                "picks": result.picks.get(server.name, 0),
                "share": round(result.picks.get(server.name, 0) / total_picks, 4) if total_picks else None,
                "served": served[server.name],
                "served_after_drain": _after_drain(good, result.drained_ns, server.name),
            }
            for server in result.servers
        ],
        "latency_ms": {
            "round_robin": _milliseconds(result.round_robin_s),
            "picked": _milliseconds(result.picked_s),
            "added": {
                name: _difference(result.picked_s, result.round_robin_s, share)
                for name, share in (("p50", 0.5), ("p99", 0.99))
            },
        },
        "age_at_decision_ms": _quantiles([sent.age_ms for sent in good if sent.age_ms is not None]),
        "time_to_first_byte_ms": _milliseconds([sent.outcome.first_byte_s for sent in good]),
    }
    return {**summary, "broken_promises": broken_promises(summary)}


def broken_promises(summary: dict[str, Any]) -> list[str]:
    """Return what a demo promises and this one did not keep, one sentence each."""
    broken = []
    if summary["errors"] or not summary["requests"]:
        broken.append(f"{summary['errors']} of {summary['requests']} requests failed")
    for endpoint in summary["endpoints"]:
        others = [other["picks"] for other in summary["endpoints"] if other is not endpoint]
        if endpoint["role"] == "slow" and summary["requests"] >= SHARES_FROM and endpoint["picks"] >= min(others):
            broken.append(f"{endpoint['name']} was three times slower and did not get the smallest share")
        if endpoint["served_after_drain"]:
            broken.append(f"{endpoint['name']} served {endpoint['served_after_drain']} requests after its drain")
    return broken


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of all values do not exceed; None for no values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _after_drain(good: Sequence[Sent], drained_ns: dict[str, int], name: str) -> int | None:
    moment = drained_ns.get(name)
    return None if moment is None else sum(1 for sent in good if sent.server == name and sent.sent_ns > moment)


def _quantiles(values: Sequence[float]) -> dict[str, float | None]:
    found = {"p50": quantile(values, 0.5), "p99": quantile(values, 0.99)}
    return {name: None if value is None else round(value, 3) for name, value in found.items()}


def _milliseconds(seconds: Sequence[float]) -> dict[str, float | None]:
    return _quantiles([value * 1e3 for value in seconds])


def _difference(picked: Sequence[float], plain: Sequence[float], share: float) -> float | None:
    first, second = quantile(picked, share), quantile(plain, share)
    return None if first is None or second is None else round((first - second) * 1e3, 3)


def table(summary: dict[str, Any]) -> RenderableType:
    """Return the summary as a table with a few sentences."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = Table(title="What was picked", title_justify="left")
    for heading in ("server", "in this run it", "picks", "share", ""):
        rows.add_column(heading, justify="right" if heading in ("picks", "share") else "left", no_wrap=True)
    for endpoint in summary["endpoints"]:
        share = endpoint["share"] or 0.0
        rows.add_row(
            endpoint["name"],
            describe(endpoint),
            str(endpoint["picks"]),
            f"{share:.1%}",
            "█" * round(share * 24),
        )
    latency, age, first = summary["latency_ms"], summary["age_at_decision_ms"], summary["time_to_first_byte_ms"]
    lines = [
        f"{summary['requests']} requests in {summary['duration_s']} s, {summary['errors']} errors",
        f"first byte after {_ms(first['p50'])} (p50), {_ms(first['p99'])} (p99)",
        f"through Envoy: {_ms(latency['picked']['p50'])} with a pick, {_ms(latency['round_robin']['p50'])} round robin",
        f"a pick adds {_ms(latency['added']['p50'])} (p50), {_ms(latency['added']['p99'])} (p99)",
        f"age of the load values at a decision: {_ms(age['p50'])} (p50), {_ms(age['p99'])} (p99)",
        *(f"error: {sample}" for sample in summary["error_samples"]),
    ]
    return Group(rows, *(Text(line) for line in lines))


def describe(endpoint: dict[str, Any]) -> str:
    """Return what happened to an endpoint, in words."""
    if endpoint["role"] == "slow":
        return "was three times slower"
    if endpoint["role"] == "drained":
        after = endpoint["served_after_drain"]
        return "was drained past half-way" + ("" if after is None else f", then {after}")
    return "ran at full speed"


def _ms(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f} ms" if value < 100 else f"{value:.0f} ms"

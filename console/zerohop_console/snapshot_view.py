"""One snapshot as plain values (what `zerohop snapshot --json` prints) and as a table for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgpack

from zerohop_snapshot.layout import (
    GPU_COLUMNS,
    HOST_FIELDS,
    DrainReason,
    Flag,
    GpuFlag,
    SlowdownReason,
    UnhealthyReason,
    ValueSource,
    reason_bytes,
)
from zerohop_snapshot.pickercell import PeerCells
from zerohop_snapshot.reader import Snapshot

if TYPE_CHECKING:
    from rich.console import RenderableType

View = dict[str, Any]


def view(snapshot: Snapshot, in_flight: Sequence[int | None], now_ns: int) -> View:
    """Return the snapshot as JSON-ready values.

    Unknown is None. Ages are milliseconds against `now_ns` (CLOCK_MONOTONIC). `in_flight` is indexed by row.
    """
    cold = msgpack.unpackb(snapshot.cold, strict_map_key=False) if snapshot.cold else {}
    return {
        "sequence": snapshot.sequence,
        "age_ms": age_ms(snapshot.published_ns, now_ns),
        "node": cold.get("node"),
        "endpoints": [_endpoint(snapshot, cold, row, in_flight[row], now_ns) for row in used_rows(snapshot)],
        "gpus": _gpus(snapshot, cold.get("gpus") or [], now_ns),
        "host": _host(snapshot, now_ns),
        "refusals": snapshot.refusals,
    }


def used_rows(snapshot: Snapshot) -> list[int]:
    """Return the rows that hold an endpoint."""
    return [row for row, flags in enumerate(snapshot.column("flags")) if flags & Flag.USED]


def in_flight(snapshot: Snapshot, cells: PeerCells, now_ns: int) -> list[int | None]:
    """Return, by row, the requests in flight over all live workers; None while no worker is alive to count them."""
    workers = cells.live(now_ns)
    generations = snapshot.column("generation")
    if not workers:
        return [None] * len(generations)
    return [sum(worker.in_flight(row, generation) for worker in workers) for row, generation in enumerate(generations)]


def age_ms(moment_ns: int, now_ns: int) -> float | None:
    """Return the age of a moment in milliseconds, None for never."""
    return round(max(0, now_ns - moment_ns) / 1e6, 3) if moment_ns else None


def _endpoint(snapshot: Snapshot, cold: View, row: int, flying: int | None, now_ns: int) -> View:
    generation = snapshot.column("generation")[row]
    details = (cold.get("endpoints") or {}).get(row) or {}
    if details.get("generation", generation) != generation:
        details = {}  # the row has a new owner whose names are not published yet
    flags = Flag(snapshot.column("flags")[row])
    return {
        "address": details.get("address"),
        "name": details.get("name"),
        "waiting": _number(snapshot.column("waiting")[row]),
        "running": _number(snapshot.column("running")[row]),
        "kv_cache_usage": _number(snapshot.column("kv_cache_usage")[row]),
        "observed_age_ms": age_ms(snapshot.column("observed_ns")[row], now_ns),
        "flags": [name.lower() for name, bit in Flag.__members__.items() if bit & flags and bit != Flag.USED],
        "models": list(details.get("models") or ()),
        "in_flight": flying,
        "reasons": _reasons(snapshot.column("reasons")[row]),
        "slowdown": _number(snapshot.column("slowdown")[row]),
        "adapters": _adapters(snapshot, cold.get("adapters") or [], row),
        "pools": list(details.get("pools") or ()),
        "engine": details.get("engine"),
        "gpus": list(details.get("gpus") or ()),
        "row": row,
        "generation": generation,
    }


def _reasons(word: int) -> View:
    drain, unhealthy, slowdown, source = reason_bytes(word)
    return {
        "drain": _name(DrainReason, drain),
        "unhealthy": _name(UnhealthyReason, unhealthy),
        "slowdown": _name(SlowdownReason, slowdown),
        "source": _name(ValueSource, source),
    }


def _name(kind: Any, code: int) -> str | None:
    if code == 0:
        return None
    try:
        return str(kind(code).name).lower()
    except ValueError:
        return str(code)


def _adapters(snapshot: Snapshot, names: Sequence[str | None], row: int) -> View:
    def named(column: str) -> list[str]:
        bits = snapshot.column(f"{column}_0")[row] | snapshot.column(f"{column}_1")[row] << 64
        return [name for slot, name in enumerate(names) if name is not None and bits >> slot & 1]

    return {
        "running": named("lora_running"),
        "waiting": named("lora_waiting"),
        "max": _number(snapshot.column("lora_max")[row]),
    }


def _gpus(snapshot: Snapshot, cold: Sequence[View], now_ns: int) -> list[View]:
    gpus: list[View] = []
    for row, flags in enumerate(snapshot.gpu("flags")):
        if not flags & GpuFlag.USED:
            continue
        gpu: View = dict(cold[row]) if row < len(cold) and cold[row] else {}
        for column in GPU_COLUMNS:
            value = snapshot.gpu(column.name)[row]
            if column.name.endswith("observed_ns"):
                gpu[column.name.replace("_ns", "_age_ms")] = age_ms(value, now_ns)
            elif column.name == "flags":
                gpu["flags"] = [name.lower() for name, bit in GpuFlag.__members__.items() if bit & value and bit != 1]
            elif column.name != "reserved":
                gpu[column.name] = _number(value)
        gpus.append(gpu)
    return gpus


def _host(snapshot: Snapshot, now_ns: int) -> View:
    host: View = {}
    for field in HOST_FIELDS:
        value = snapshot.host(field.name)
        if field.name == "observed_ns":
            host["observed_age_ms"] = age_ms(int(value), now_ns)
        else:
            host[field.name] = _number(value)
    return host


def _number(value: float) -> float | int | None:
    """Return None for NaN, a whole number without its `.0`, and float32 values without their tail of digits."""
    if not math.isfinite(value):
        return None
    if value == int(value):
        return int(value)
    return float(f"{value:.7g}")


def table(view: View) -> RenderableType:
    """Return a view as tables: endpoints, then GPUs and the host in lines."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = f"{view['node'] or 'node'}   sequence {view['sequence']}   published {_age(view['age_ms'])} ago"
    endpoints = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    # On a narrow terminal names fold and numbers stay whole: two endpoints must not look alike for want of their ends.
    endpoints.add_column("endpoint", overflow="fold")
    for heading in ("waits", "runs", "KV", "age", "flying"):
        endpoints.add_column(heading, justify="right", no_wrap=True)
    endpoints.add_column("flags", overflow="fold", max_width=24)
    endpoints.add_column("models", overflow="fold", max_width=24)
    for row in view["endpoints"]:
        endpoints.add_row(
            # As it is: "[fd00::1]" looks like markup.
            Text("\n".join(dict.fromkeys(w for w in (row["name"], row["address"]) if w)) or f"row {row['row']}"),
            _text(row["waiting"]),
            _text(row["running"]),
            "-" if row["kv_cache_usage"] is None else f"{row['kv_cache_usage']:.0%}",
            _age(row["observed_age_ms"]),
            _text(row["in_flight"]),
            _flags(row),
            ", ".join(row["models"]),
        )
    parts: list[RenderableType] = [endpoints]
    parts += [Text(_gpu_line(gpu)) for gpu in view["gpus"]]
    host = view["host"]
    if host.get("observed_age_ms") is not None:
        free = host["memory_available_bytes"]
        parts.append(
            Text(
                f"host: CPU {_ratio(host['cpu_ratio'])}, load {_text(host['load1'])}, "
                f"memory free {'-' if free is None else f'{free / 2**30:.1f} GiB'}"
            )
        )
    if view["refusals"]:
        parts.append(Text(f"{view['refusals']} endpoints did not fit the table; restart the agent with a larger one"))
    return Group(*parts)


def _flags(row: View) -> str:
    why = {"drain": "drain", "unhealthy": "unhealthy", "slowed": "slowdown"}
    words = []
    for flag in row["flags"]:
        reason = row["reasons"].get(why.get(flag, ""))
        words.append(f"{flag} ({reason.replace('_', ' ')})" if reason else flag)
    return ", ".join(words)


def _gpu_line(gpu: View) -> str:
    used, total = gpu["memory_used_bytes"], gpu["memory_total_bytes"]
    memory = f"{used / 2**30:.1f}/{total / 2**30:.1f} GiB" if used is not None and total else "-"
    return (
        f"GPU {gpu.get('index', '?')} {gpu.get('name', '')}: use {_ratio(gpu['utilization'])}, memory {memory}, "
        f"{_text(gpu['temperature_celsius'])} C, {_text(gpu['power_watts'])} W {' '.join(gpu['flags'])}".rstrip()
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _age(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "never"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.1f} s"

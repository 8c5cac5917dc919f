"""From a snapshot to the text that Prometheus reads.

Written out by hand instead of through prometheus_client's sample objects: 64 endpoints and 8 GPUs are about 3,000
lines, which cost 15 ms there and 3 ms here, and the interpreter that renders is the one that publishes. A value that is
unknown has no line.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from zerohop_agent.cold_map import decode
from zerohop_agent.export.families import CLOCK_EVENT_REASONS, DERIVED, ENDPOINT, GPU, HOST, Family
from zerohop_snapshot.layout import (
    DrainReason,
    Flag,
    GpuFlag,
    SlowdownReason,
    UnhealthyReason,
    ValueSource,
    reason_bytes,
)
from zerohop_snapshot.pickercell import PeerCell
from zerohop_snapshot.reader import Snapshot

_DERIVED = {family.name: family for family in DERIVED}
_FLAGS = tuple((flag, f'flag="{flag.name.lower()}"') for flag in Flag if flag is not Flag.USED and flag.name)
_GPU_FLAGS = tuple(
    (flag, f'condition="{flag.name.lower()}"') for flag in GpuFlag if flag is not GpuFlag.USED and flag.name
)
_REASONS = (
    ("drain", DrainReason),
    ("unhealthy", UnhealthyReason),
    ("slowdown", SlowdownReason),
    ("source", ValueSource),
)


class SnapshotPage:
    """Renders snapshots. Keeps the label text of each row for as long as the cold map stays the same."""

    def __init__(self) -> None:
        self._generation = -1
        self._endpoints: list[tuple[int, str]] = []
        self._info: list[str] = []
        self._gpus: list[tuple[int, str]] = []
        self._gpu_info: list[str] = []

    def render(
        self, snapshot: Snapshot, file_bytes: int, now_ns: int | None = None, workers: Sequence[PeerCell] = ()
    ) -> str:
        """The lines for endpoints, GPUs, host and the snapshot. `workers` are the cells of live picker workers."""
        now = time.monotonic_ns() if now_ns is None else now_ns
        self._read_cold(snapshot)
        lines: list[str] = []
        self._add_endpoints(lines, snapshot, now)
        if workers:
            self._add_picks(lines, snapshot, workers)
        self._add_gpus(lines, snapshot, now)
        self._add_host(lines, snapshot, now)
        _single(lines, "zerohop_snapshot_sequence", snapshot.sequence)
        _single(lines, "zerohop_snapshot_age_seconds", max(0, now - snapshot.published_ns) / 1e9)
        _single(lines, "zerohop_snapshot_endpoints", snapshot.endpoint_count)
        _single(lines, "zerohop_snapshot_endpoint_rows", snapshot.row_stride)
        _single(lines, "zerohop_snapshot_cold_bytes", len(snapshot.cold))
        _single(lines, "zerohop_snapshot_cold_generation", snapshot.cold_generation)
        _single(lines, "zerohop_snapshot_refusals_total", snapshot.refusals)
        _single(lines, "zerohop_snapshot_file_bytes", file_bytes)
        lines.append("")
        return "\n".join(lines)

    def _read_cold(self, snapshot: Snapshot) -> None:
        if snapshot.cold_generation == self._generation:
            return
        cold = decode(snapshot.cold)
        self._endpoints, self._info = [], []
        for row, facts in sorted(cold.get("endpoints", {}).items()):
            labels = f'endpoint="{escape(facts.get("address"))}",name="{escape(facts.get("name"))}"'
            self._endpoints.append((int(row), labels))
            pools = ",".join(facts.get("pools") or ())
            engine, role = escape(facts.get("engine")), escape(facts.get("role"))
            self._info.append(f'{labels},engine="{engine}",role="{role}",pools="{escape(pools)}"')
        self._gpus, self._gpu_info = [], []
        for row, board in enumerate(cold.get("gpus") or ()):
            index, uuid, model = (escape(board.get(key)) for key in ("index", "uuid", "name"))
            labels = f'gpu="{index}",uuid="{uuid}",model="{model}"'
            mig = board.get("mig")
            if isinstance(mig, dict):
                labels += "".join(f',{key}="{escape(mig[key])}"' for key in ("mig_profile", "gi_id") if key in mig)
            self._gpus.append((row, labels))
            self._gpu_info.append(f'{labels},bus_id="{escape(board.get("bus_id"))}"')
        self._generation = snapshot.cold_generation

    def _add_endpoints(self, lines: list[str], snapshot: Snapshot, now_ns: int) -> None:
        flags = snapshot.column("flags")
        rows = [
            (row, labels, info)
            for (row, labels), info in zip(self._endpoints, self._info, strict=True)
            if row < len(flags) and flags[row] & Flag.USED
        ]
        if not rows:
            return
        _table(lines, ENDPOINT, [(row, labels) for row, labels, _ in rows], snapshot.column)
        _head(lines, "zerohop_endpoint_info")
        lines += [f"zerohop_endpoint_info{{{info}}} 1" for _, _, info in rows]
        _head(lines, "zerohop_endpoint_flag")
        for row, labels, _ in rows:
            word = flags[row]
            lines += [f"zerohop_endpoint_flag{{{labels},{name}}} {1 if word & flag else 0}" for flag, name in _FLAGS]
        reasons = snapshot.column("reasons")
        _head(lines, "zerohop_endpoint_up")
        lines += [f"zerohop_endpoint_up{{{labels}}} {0 if reasons[row] >> 8 & 255 else 1}" for row, labels, _ in rows]
        _head(lines, "zerohop_endpoint_reason")
        for row, labels, _ in rows:
            for (kind, enum), code in zip(_REASONS, reason_bytes(reasons[row]), strict=True):
                if code:
                    text = f'kind="{kind}",reason="{_reason(enum, code)}"'
                    lines.append(f"zerohop_endpoint_reason{{{labels},{text}}} 1")
        pairs = [(row, labels) for row, labels, _ in rows]
        observed = snapshot.column("observed_ns")
        _ages(lines, "zerohop_endpoint_value_age_seconds", pairs, observed, now_ns)
        _ages(lines, "zerohop_endpoint_value_age_at_publish_seconds", pairs, observed, snapshot.published_ns)
        _ages(lines, "zerohop_endpoint_detail_age_seconds", pairs, snapshot.column("detail_observed_ns"), now_ns)
        _ages(lines, "zerohop_endpoint_progress_age_seconds", pairs, snapshot.column("progress_ns"), now_ns)

    def _add_picks(self, lines: list[str], snapshot: Snapshot, workers: Sequence[PeerCell]) -> None:
        generations = snapshot.column("generation")
        rows = [(row, labels) for row, labels in self._endpoints if row < len(generations)]
        _head(lines, "zerohop_endpoint_picks_total")
        for worker in workers:
            name = f'worker="{escape(worker.name)}"'
            lines += [
                f"zerohop_endpoint_picks_total{{{labels},{name}}} {worker.picks(row, generations[row])}"
                for row, labels in rows
            ]
        _head(lines, "zerohop_endpoint_in_flight")
        for row, labels in rows:
            flying = sum(worker.in_flight(row, generations[row]) for worker in workers)
            lines.append(f"zerohop_endpoint_in_flight{{{labels}}} {flying}")

    def _add_gpus(self, lines: list[str], snapshot: Snapshot, now_ns: int) -> None:
        flags = snapshot.gpu("flags")
        rows = [
            (row, labels, info)
            for (row, labels), info in zip(self._gpus, self._gpu_info, strict=True)
            if row < len(flags) and flags[row] & GpuFlag.USED
        ]
        if not rows:
            return
        pairs = [(row, labels) for row, labels, _ in rows]
        _table(lines, GPU, pairs, snapshot.gpu)
        _head(lines, "zerohop_gpu_info")
        lines += [f"zerohop_gpu_info{{{info}}} 1" for _, _, info in rows]
        _head(lines, "zerohop_gpu_condition")
        for row, labels in pairs:
            word = flags[row]
            lines += [
                f"zerohop_gpu_condition{{{labels},{name}}} {1 if word & flag else 0}" for flag, name in _GPU_FLAGS
            ]
        reasons, observed = snapshot.gpu("clock_event_reasons"), snapshot.gpu("observed_ns")
        _head(lines, "zerohop_gpu_clock_event_reason")
        for row, labels in pairs:
            if observed[row]:
                word = reasons[row]
                lines += [
                    f'zerohop_gpu_clock_event_reason{{{labels},reason="{name}"}} {1 if word & bit else 0}'
                    for bit, name in CLOCK_EVENT_REASONS
                ]
        xid = snapshot.gpu("xid_last")
        _head(lines, "zerohop_gpu_xid_last")
        lines += [f"zerohop_gpu_xid_last{{{labels}}} {xid[row]}" for row, labels in pairs if xid[row]]
        _ages(lines, "zerohop_gpu_value_age_seconds", pairs, observed, now_ns)
        _ages(lines, "zerohop_gpu_slow_value_age_seconds", pairs, snapshot.gpu("slow_observed_ns"), now_ns)

    def _add_host(self, lines: list[str], snapshot: Snapshot, now_ns: int) -> None:
        before = ""
        for family in HOST:
            value = snapshot.host(family.column)
            if value != value:
                continue
            if family.name != before:
                before = family.name
                _family_head(lines, family)
            labels = f"{{{family.labels}}}" if family.labels else ""
            lines.append(f"{family.name}{labels} {value!r}")
        observed = int(snapshot.host("observed_ns"))
        if observed:
            _single(lines, "zerohop_host_value_age_seconds", max(0, now_ns - observed) / 1e9)


def escape(value: object) -> str:
    """A label's value, escaped for the text format; None is empty."""
    if value is None:
        return ""
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _table(lines: list[str], families: Iterable[Family], rows: Sequence[tuple[int, str]], column: Any) -> None:
    before = ""
    for family in families:
        values = column(family.column)
        fixed = f",{family.labels}" if family.labels else ""
        name = family.name
        # NaN is the one value that differs from itself. A float32 says no more than 7 digits; a counter needs them all.
        form = ".7g" if getattr(values, "format", "d") == "f" else ""
        found = [f"{name}{{{labels}{fixed}}} {value:{form}}" for row, labels in rows if (value := values[row]) == value]
        if found:
            if name != before:
                before = name
                _family_head(lines, family)
            lines += found


def _ages(lines: list[str], name: str, rows: Sequence[tuple[int, str]], times: Any, now_ns: int) -> None:
    found = [f"{name}{{{labels}}} {max(0, now_ns - times[row]) / 1e9:.6f}" for row, labels in rows if times[row]]
    if found:
        _head(lines, name)
        lines += found


def _single(lines: list[str], name: str, value: float) -> None:
    _head(lines, name)
    lines.append(f"{name} {value!r}")


def _head(lines: list[str], name: str) -> None:
    _family_head(lines, _DERIVED[name])


def _family_head(lines: list[str], family: Family) -> None:
    lines.append(f"# HELP {family.name} {family.help}.")
    lines.append(f"# TYPE {family.name} {family.kind}")


def _reason(enum: Any, code: int) -> str:
    try:
        return str(enum(code).name).lower()
    except ValueError:
        return str(code)

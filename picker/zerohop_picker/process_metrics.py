"""The `process_*` metrics that every Prometheus client exports, here once per worker."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

from zerohop_picker.metrics import PROCESS_PREFIX, Metrics

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_START_FIELD = 19  # of /proc/self/stat behind the command: start time in clock ticks since boot


def export_process(metrics: Metrics) -> None:
    """Register this process's memory, CPU time, open files and start."""
    started_s = _started_s()
    gauges: dict[str, tuple[str, Callable[[], float]]] = {
        "start_time_seconds": ("Start time of the process since unix epoch.", lambda: started_s),
        "resident_memory_bytes": ("Resident memory size in bytes.", lambda: _memory_pages(1) * _PAGE_BYTES),
        "virtual_memory_bytes": ("Virtual memory size in bytes.", lambda: _memory_pages(0) * _PAGE_BYTES),
        "open_fds": ("Number of open file descriptors.", _open_files),
        "max_fds": ("Maximum number of open file descriptors.", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    }
    for name, (text, read) in gauges.items():
        metrics.gauge(f"{PROCESS_PREFIX}{name}", text, read)
    text = "Total user and system CPU time spent in seconds."
    metrics.counted(f"{PROCESS_PREFIX}cpu_seconds", text, (), lambda: (((), _cpu_s()),))


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1


def _cpu_s() -> float:
    used = os.times()
    return used.user + used.system


def _memory_pages(field: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[field])


def _started_s() -> float:
    booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    ticks = int(Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[_START_FIELD])
    return int(booted.split()[1]) + ticks / _TICKS_PER_S

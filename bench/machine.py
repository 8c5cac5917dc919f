"""The machine that a run happens on, and what processes have used: CPU seconds and resident memory."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from zerohop_console.demo.envoy import envoy_binary
from zerohop_picker.compiled import compiled


def describe() -> dict[str, str]:
    """What a reader of the figures must know."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    version = subprocess.run([envoy_binary(), "--version"], capture_output=True, text=True, check=False).stdout
    return {
        "cpu": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "envoy": version.strip().rpartition("version: ")[2].split("/")[1] if "/" in version else "?",
        "zerohop": "compiled" if compiled() else "from its sources",
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it has started."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def cpu_s(pids: Iterable[int]) -> float:
    """User and system CPU seconds of processes and their children, so far."""
    total = 0.0
    for pid in pids:
        for process in family(pid):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def resident_bytes(pid: int) -> list[int]:
    """Resident memory of a process and of each that it has started."""
    return [process.memory_info().rss for process in family(pid)]


def yardstick_s() -> float:
    """CPU seconds of a fixed piece of Python: says how fast this machine was at that moment."""
    began, total = time.thread_time(), 0
    for number in range(1_000_000):
        total += number
    return time.thread_time() - began

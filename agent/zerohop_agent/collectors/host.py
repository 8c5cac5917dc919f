"""The host: processors, memory, pressure, network and disks.

In a pod `/proc/stat`, `meminfo`, `loadavg` and `pressure` are the host's already; the network is not. Its counters are
read from the first process's namespace, which is the host's where the agent may see it (hostPID, or `--procfs`).
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import psutil

from zerohop_agent.collectors.base import NoData, SnapshotView

#: Interfaces behind which traffic is counted once more: pods' ends, bridges and tunnels.
_VIRTUAL = re.compile(r"lo$|veth|cali|lxc|docker|br-|cni|flannel|cilium|virbr|kube-|nodelocal|dummy|ifb|tunl|vxlan")
_PRESSURE = (
    ("cpu", "some", "pressure_cpu_some_avg10"),
    ("memory", "some", "pressure_memory_some_avg10"),
    ("memory", "full", "pressure_memory_full_avg10"),
    ("io", "some", "pressure_io_some_avg10"),
    ("io", "full", "pressure_io_full_avg10"),
)


class HostCollector:
    """Writes `HOST_FIELDS`. One update costs about 0.4 ms; nothing in it can block on a disk or a network.

    Source: /proc/stat, meminfo, loadavg, vmstat and diskstats through psutil; /proc/pressure; /proc/1/net/dev.
    """

    name = "host"

    def __init__(self, procfs: Path = Path("/proc"), interval_ns: int = 1_000_000_000) -> None:
        self.interval_ns = interval_ns
        self._procfs = procfs
        if procfs != Path("/proc"):
            psutil.PROCFS_PATH = str(procfs)
        # The first call has nothing to compare with and would say 0.
        psutil.cpu_percent(None)
        self._boot_time = psutil.boot_time()

    async def update(self, view: SnapshotView) -> None:
        """Read everything once.

        Raises: NoData where there is no /proc; OSError when a part that must be there cannot be read.
        """
        if not (self._procfs / "stat").exists():
            raise NoData(f"{self._procfs} is not a proc file system")
        record = view.host
        record.set("cpu_ratio", psutil.cpu_percent(None) / 100)
        for name, value in zip(("load1", "load5", "load15"), self._load(), strict=True):
            record.set(name, value)
        memory = psutil.virtual_memory()
        record.set("memory_total_bytes", memory.total)
        record.set("memory_available_bytes", memory.available)
        record.set("swap_used_bytes", psutil.swap_memory().used)
        record.set("boot_time_seconds", self._boot_time)
        for name, pressure in self._pressure().items():
            record.set(name, pressure)
        received, sent = self._network()
        record.set("network_rx_bytes", received)
        record.set("network_tx_bytes", sent)
        disks = psutil.disk_io_counters()
        record.set("disk_read_bytes", disks.read_bytes if disks is not None else None)
        record.set("disk_write_bytes", disks.write_bytes if disks is not None else None)
        record.set("observed_ns", time.monotonic_ns())

    async def close(self) -> None:
        """Nothing is held open."""

    def _load(self) -> tuple[float, float, float]:
        first, second, third = (self._procfs / "loadavg").read_text().split()[:3]
        return float(first), float(second), float(third)

    def _pressure(self) -> dict[str, float | None]:
        """Ratios 0..1; None where the kernel runs without PSI (`psi=0`) or the line is missing."""
        found: dict[str, float | None] = {}
        pages: dict[str, str] = {}
        for resource, kind, name in _PRESSURE:
            if resource not in pages:
                try:
                    pages[resource] = (self._procfs / "pressure" / resource).read_text()
                except OSError:
                    pages[resource] = ""
            found[name] = read_pressure(pages[resource], kind)
        return found

    def _network(self) -> tuple[float | None, float | None]:
        for path in (self._procfs / "1/net/dev", self._procfs / "net/dev"):
            try:
                return read_network(path.read_text())
            except OSError:
                continue
        return None, None


def read_pressure(page: str, kind: str) -> float | None:
    """The 10-second share (0..1) of the `some` or `full` line of a file in /proc/pressure; None without such a line."""
    for line in page.splitlines():
        fields = line.split()
        if fields and fields[0] == kind:
            for field in fields[1:]:
                name, _, value = field.partition("=")
                if name == "avg10":
                    return float(value) / 100
    return None


def read_network(page: str) -> tuple[float, float]:
    """Bytes received and sent, over the interfaces of a /proc/net/dev page that are neither loopback nor virtual."""
    received = sent = 0
    for line in page.splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) >= 9 and not _VIRTUAL.match(name.strip()):
            received += int(fields[0])
            sent += int(fields[8])
    return float(received), float(sent)

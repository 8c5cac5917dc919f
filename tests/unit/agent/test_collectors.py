"""The driver keeps collectors apart; the host collector reads a real /proc."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.waiting import eventually_async
from zerohop_agent.collectors.base import CollectorDriver, NoData
from zerohop_agent.collectors.host import HostCollector, read_network, read_pressure
from zerohop_snapshot.layout import HOST_FIELDS

from .conftest import Bench

MS = 1_000_000


class Scripted:
    """A collector whose update the test gives."""

    def __init__(self, name: str, update: Callable[[int], Awaitable[None]], interval_ns: int = 10 * MS) -> None:
        self.name = name
        self.interval_ns = interval_ns
        self.updates = 0
        self.closed = 0
        self._update = update

    async def update(self, view: Any) -> None:
        self.updates += 1
        await self._update(self.updates)

    async def close(self) -> None:
        self.closed += 1


async def works(_: int) -> None:
    return


async def fails(_: int) -> None:
    raise OSError("no such device")


async def hangs(_: int) -> None:
    await asyncio.Event().wait()


async def nothing(_: int) -> None:
    raise NoData("no library")


async def test_one_that_fails_or_hangs_leaves_the_others_alone(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    collectors = [Scripted("bad", fails), Scripted("hung", hangs), Scripted("empty", nothing), Scripted("good", works)]
    driver = CollectorDriver(collectors, bench.runtime.view)
    caplog.set_level("INFO")
    task = asyncio.ensure_future(driver.run())
    await eventually_async(lambda: collectors[3].updates >= 10 and collectors[0].updates >= 10)
    assert collectors[1].updates == 1
    stats = driver.stats
    assert (stats["good"].success, stats["good"].has_data, stats["good"].failures) == (True, True, 0)
    assert (stats["bad"].success, stats["bad"].error) == (False, "OSError: no such device")
    assert stats["bad"].failures >= 10
    assert (stats["empty"].success, stats["empty"].has_data) == (True, False)
    assert stats["hung"].success is None
    # One line per change and not one per update.
    assert [record.getMessage() for record in caplog.records].count("collector failed") == 1
    assert [record.getMessage() for record in caplog.records].count("collector has no data") == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [collector.closed for collector in collectors] == [1, 1, 1, 1]


async def test_a_deadline_ends_an_update_that_hangs(bench: Bench) -> None:
    driver = CollectorDriver(
        [Scripted("hung", hangs)], bench.runtime.view, shortest_deadline_s=0.02, deadline_intervals=1
    )
    await driver.update_once()
    assert driver.stats["hung"].success is False
    assert "no answer within" in driver.stats["hung"].error


async def test_a_collector_that_works_again_says_so_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def sometimes(update: int) -> None:
        if update <= 3:
            raise OSError(f"attempt {update}")

    caplog.set_level("INFO")
    driver = CollectorDriver([Scripted("flaky", sometimes)], bench.runtime.view)
    for _ in range(6):
        await driver.update_once()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["collector failed", "collector works again"]
    assert driver.stats["flaky"].failures == 3
    assert driver.stats["flaky"].duration_s >= 0


async def test_the_host_of_this_machine(bench: Bench) -> None:
    collector = HostCollector()
    await collector.update(bench.runtime.view)
    host = bench.runtime.view.host
    values = {column.name: host.get(column.name) for column in HOST_FIELDS}
    for name in ("cpu_ratio", "memory_total_bytes", "memory_available_bytes", "load1", "boot_time_seconds"):
        assert not math.isnan(values[name]), name
    assert 0 <= values["cpu_ratio"] <= 1
    assert 0 < values["memory_available_bytes"] < values["memory_total_bytes"]
    total_kib = int(Path("/proc/meminfo").read_text().split()[1])
    assert values["memory_total_bytes"] == total_kib * 1024
    assert abs(values["observed_ns"] - time.monotonic_ns()) < 60e9
    if Path("/proc/pressure/cpu").exists():
        assert 0 <= values["pressure_cpu_some_avg10"] <= 1


async def test_a_host_without_pressure_and_without_the_first_process(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("")
    (tmp_path / "loadavg").write_text("0.50 0.40 0.30 1/234 5678\n")
    (tmp_path / "net").mkdir()
    page = "Inter-| Receive\n face |bytes\n  eth0: 5 0 0 0 0 0 0 0 7 0 0 0 0 0 0 0\n"
    (tmp_path / "net" / "dev").write_text(page)
    collector = HostCollector()
    collector._procfs = tmp_path
    await collector.update(bench.runtime.view)
    host = bench.runtime.view.host
    assert [host.get(name) for name in ("load1", "network_rx_bytes", "network_tx_bytes")] == [0.5, 5, 7]
    assert math.isnan(host.get("pressure_cpu_some_avg10"))
    (tmp_path / "stat").unlink()
    with pytest.raises(NoData):
        await collector.update(bench.runtime.view)


def test_pressure() -> None:
    page = "some avg10=12.50 avg60=1.00 avg300=0.10 total=123\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=45\n"
    assert read_pressure(page, "some") == pytest.approx(0.125)
    assert read_pressure(page, "full") == pytest.approx(0.0025)
    assert read_pressure("some total=3\n", "some") is None
    assert read_pressure("", "full") is None


def test_network_counts_each_byte_once() -> None:
    page = (
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
        "    lo: 100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0\n"
        "  eth0: 2000 1 0 0 0 0 0 0 300 1 0 0 0 0 0 0\n"
        "enp1s0:5 1 0 0 0 0 0 0 6 1 0 0 0 0 0 0\n"
        "vethab: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0\n"
        "docker0: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0\n"
    )
    assert read_network(page) == (2005, 306)

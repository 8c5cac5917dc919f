from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path

import pytest

from support.waiting import eventually_async, hold_async
from zerohop_agent.publisher import HEARTBEAT_NS, Publisher
from zerohop_snapshot.reader import SnapshotReader
from zerohop_snapshot.writer import SnapshotWriter

MS = 1_000_000


async def test_a_change_is_published_soon_and_many_changes_no_faster_than_the_interval(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path)
    seen: list[int] = []

    def prepare(now_ns: int) -> bool:
        seen.append(now_ns)
        return False

    publisher = Publisher(writer, prepare, 10 * MS)
    publisher.start()
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        publisher.touch()
        await asyncio.sleep(0)
    publisher.stop()
    gaps = [after - before for before, after in pairwise(seen[:-1])]
    assert len(gaps) >= 10
    # uvloop and asyncio round timers to a millisecond.
    assert min(gaps) >= 9 * MS
    writer.close()


async def test_without_a_change_there_is_a_heartbeat_and_no_more(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path)
    reader = SnapshotReader(tmp_path)
    publisher = Publisher(writer, lambda _: False, 5 * MS)
    publisher.start()
    first = publisher.publishes

    def published_lately() -> bool:
        snapshot = reader.read()
        return snapshot is not None and time.monotonic_ns() - snapshot.published_ns < 1_000 * MS

    await hold_async(published_lately, 0.4)
    publisher.stop()
    assert 3 <= publisher.publishes - first <= 400 * MS // HEARTBEAT_NS + 1
    writer.close()
    reader.close()


async def test_while_polling_it_looks_at_each_interval_and_publishes_what_is_new(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path)
    looks = 0
    news = False

    def prepare(_: int) -> bool:
        nonlocal looks, news
        looks += 1
        new, news = news, False
        return new

    publisher = Publisher(writer, prepare, 2 * MS, polling=lambda: True)
    publisher.start()
    await eventually_async(lambda: looks >= 50)
    assert publisher.publishes <= looks // 3
    before = publisher.publishes
    news = True
    await eventually_async(lambda: publisher.publishes > before)
    publisher.stop()
    writer.close()


async def test_stop_publishes_once_more_and_then_never(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path)
    publisher = Publisher(writer, lambda _: False, 5 * MS)
    publisher.start()
    assert publisher.is_alive()
    sequence = writer.sequence
    publisher.stop()
    assert writer.sequence == sequence + 1
    publisher.touch()
    await hold_async(lambda: writer.sequence == sequence + 1, 0.06)
    assert not publisher.is_alive()
    writer.close()


async def test_a_loop_that_hangs_is_not_alive(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path)
    publisher = Publisher(writer, lambda _: False, 5 * MS)
    publisher.start()
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass
    assert not publisher.is_alive(within_ns=150 * MS)
    await eventually_async(lambda: publisher.is_alive(within_ns=150 * MS))
    assert publisher.take_lag_max() > 0.1
    assert publisher.take_lag_max() < 0.1
    publisher.stop()
    writer.close()


async def test_a_fault_in_one_publish_does_not_end_the_publishing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = SnapshotWriter(tmp_path)
    faulty = True

    def prepare(_: int) -> bool:
        if faulty:
            raise RuntimeError("a fault of ours")
        return True

    publisher = Publisher(writer, prepare, 5 * MS)
    publisher.start()
    await eventually_async(lambda: publisher.failures >= 3)
    assert not publisher.is_alive()
    assert [record.getMessage() for record in caplog.records] == ["a publish failed"]
    faulty = False
    await eventually_async(lambda: publisher.publishes >= 2)
    assert publisher.is_alive()
    publisher.stop()
    writer.close()

"""A driver that hangs, fails, is missing or goes away, and the child process that speaks to it."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from support.nvml import Boards
from unit.gpu.node import FAST, MS, watching
from zerohop_snapshot.layout import GpuFlag


async def test_a_hang_is_given_up_and_its_child_replaced(boards: Boards) -> None:
    async with watching(boards) as node:
        await node.read()
        first = node.child
        boards.hang("nvmlDeviceGetUtilizationRates")
        await node.until(lambda: "no answer from the driver" in node.error)
        assert math.isnan(node.row(0)["utilization"])
        assert node.row(0)["observed_ns"] == 0
        assert GpuFlag.USED in node.flags(0), "the board is still known"
        boards.hang()
        await node.read()
        assert node.child != first


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (9, "NoData: the NVIDIA driver is not loaded"),
        (18, "GpuUnavailable: the driver was replaced under its library; pods with the old one must be made anew"),
        (999, "GpuUnavailable: NVML: Unknown Error; a container may have lost its access to the devices"),
    ],
)
async def test_a_driver_that_does_not_start_is_tried_again(boards: Boards, code: int, error: str) -> None:
    boards.driver(init=code)
    async with watching(boards) as node:
        await node.until(lambda: node.error == error)
        boards.driver(init=0)
        await node.read()


async def test_no_library_is_no_data_and_no_work(
    boards: Boards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    async with watching(boards) as node:
        await node.until(lambda: node.error == "NoData: no NVML library (libnvidia-ml.so.1)")
        assert node.collector.interval_ns >= 1_000_000_000
        assert node.view.boards == []
        await node.until(lambda: node.collector._process._child is None, "the child has ended")
        for _ in range(20):
            await node.update()
        assert node.collector._process.starts == 1


async def test_an_old_pynvml_package_is_refused(
    boards: Boards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "pynvml"
    package.mkdir(parents=True)
    import pynvml

    shutil.copy(pynvml.__file__, package / "__init__.py")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    async with watching(boards) as node:
        await node.until(lambda: "old 'pynvml' package" in node.error)


async def test_after_enough_unknown_errors_the_agent_is_asked_to_end(boards: Boards) -> None:
    boards.driver(init=999)
    said: list[str] = []
    async with watching(boards, replace(FAST, exit_after_unknown=3), on_fatal=said.append) as node:
        await node.until(lambda: said)
        assert "lost its access" in said[0]
        assert node.collector._process.unknown_failures == 3


async def test_access_lost_while_running_is_noticed(boards: Boards) -> None:
    async with watching(boards) as node:
        await node.read()
        boards.set("*", unknown=1)
        boards.driver(init=999)
        await node.until(lambda: "Unknown Error" in node.error)
        assert all(condition.drain_reason is None for condition in node.view.conditions.values())


async def test_a_release_gives_every_handle_back(boards: Boards, tmp_path: Path) -> None:
    release = tmp_path / "release"
    async with watching(boards, replace(FAST, release_file=release)) as node:
        await node.read()
        child = node.child
        release.touch()
        await node.until(lambda: "released" in node.error)
        await node.until(lambda: not Path(f"/proc/{child}").exists(), "the child has ended")
        assert math.isnan(node.row(0)["utilization"])
        release.unlink()
        await node.read()


async def test_a_child_that_is_killed_is_replaced(boards: Boards) -> None:
    async with watching(boards) as node:
        await node.read()
        os.kill(node.child, signal.SIGKILL)
        await node.until(lambda: "ended without a word" in node.error)
        await node.read()
        assert node.view.times_told == 1, "the boards are the same"


async def test_an_agent_that_was_held_up_itself_blames_nobody(boards: Boards) -> None:
    async with watching(boards) as node:
        await node.read()
        child = node.child
        time.sleep(2 * FAST.deadline_ns / 1e9)  # noqa: ASYNC251 - the event loop stands still, as under a debugger
        await node.update()
        assert node.error == ""
        assert node.child == child


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


async def test_hung_children_do_not_pile_up(boards: Boards) -> None:
    boards.hang("nvmlInitWithFlags")
    settings = replace(FAST, start_deadline_ns=50 * MS)
    stuck = [_sleeper() for _ in range(3)]  # children that no signal has ended yet
    try:
        async with watching(boards, settings) as node:
            process = node.collector._process
            process._abandoned = list(stuck)
            for _ in range(20):
                await node.update()
            assert process.starts == 0
            assert process.left_behind == 3
            for child in stuck:
                child.kill()
            await node.until(lambda: process.starts > 0)
    finally:
        for child in stuck:
            child.kill()
            child.wait()

"""A real agent whose NVML is the compiled stand-in: what readers of the snapshot see of boards and of their faults."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.nvml import Boards, uuid_of
from support.processes import Process, Processes, free_port, processes, zerohop_command
from support.waiting import eventually, hold
from zerohop_console import snapshot_view
from zerohop_snapshot import SnapshotReader

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("gpu-node")]

#: Endpoint i runs on board i; the last one on boards 2 and 3 (tensor parallel).
_GPUS = ((0,), (1,), (2, 3))


_FAST = {"xid_hold": "300ms", "heal_after": "300ms", "slowdown_after": "200ms", "slowdown_clear": "300ms"}


class Node:
    """An agent over the stand-in and three mock servers."""

    def __init__(self, tmp_path: Path, run: Processes) -> None:
        self.boards = Boards(tmp_path, count=8)
        self.shm_dir = tmp_path / "shm"
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in _GPUS]
        for address in self.addresses:
            run.start(*zerohop_command("mock-server", "--listen", address))
        config = {
            "gpu": {
                "interval": "200ms",
                "slow_interval": "500ms",
                "deadline": "2s",
                "retry": "100ms",
                "condition": {
                    "xid_hold": "300ms",
                    "heal_after": "300ms",
                    "slowdown_after": "200ms",
                    "slowdown_clear": "300ms",
                },
            },
            "endpoints": [
                {"address": address, "gpus": [uuid_of(board) for board in gpus]}
                for address, gpus in zip(self.addresses, _GPUS, strict=True)
            ],
        }
        path = tmp_path / "agent.yaml"
        path.write_text(json.dumps(config))
        self.agent: Process = run.start(
            *zerohop_command("agent", "--config", path, "--shm-dir", self.shm_dir, "--metrics-address", "127.0.0.1:0"),
            env=self.boards.environment(),
        )
        self.agent.wait_ready()
        self.reader = SnapshotReader(self.shm_dir)
        self.wait_until_well()

    def wait_until_well(self) -> None:
        eventually(
            lambda: [(gpu["utilization"], gpu["flags"]) for gpu in self.view()["gpus"]] == [(0, [])] * 8,
            what="eight healthy boards",
        )
        eventually(lambda: all(not self.flags(index) for index in range(len(_GPUS))), what="every endpoint in use")

    def view(self) -> dict[str, Any]:
        snapshot = eventually(self.reader.read)
        assert snapshot is not None
        return snapshot_view.view(snapshot, [None] * len(snapshot.column("flags")), time.monotonic_ns())

    def gpu(self, board: int) -> dict[str, Any]:
        return next(gpu for gpu in self.view()["gpus"] if gpu["uuid"] == uuid_of(board))

    def endpoint(self, index: int) -> dict[str, Any]:
        return next(entry for entry in self.view()["endpoints"] if entry["address"] == self.addresses[index])

    def flags(self, index: int) -> set[str]:
        return set(self.endpoint(index)["flags"])


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with processes() as run:
        yield Node(tmp_path_factory.mktemp("node"), run)


@pytest.fixture
def node(started: Node) -> Node:
    """One node for all tests, with every board well."""
    started.boards.heal()
    started.wait_until_well()
    return started


def test_xid_79_drains_the_endpoints_of_the_board_within_a_second_and_they_come_back(node: Node) -> None:
    count = node.gpu(3)["xid_count"]
    started = time.monotonic()
    node.boards.set(3, lost=1)
    node.boards.xid(3, 79)
    eventually(lambda: "drain" in node.flags(2), timeout=5)
    took = time.monotonic() - started
    assert took < 1.0
    assert "drain" not in node.flags(0) | node.flags(1)
    eventually(lambda: node.gpu(3)["xid_last"] == 79 and "lost" in node.gpu(3)["flags"])
    assert node.gpu(3)["utilization"] is None
    assert node.gpu(2)["utilization"] == 0
    node.boards.set(3, lost=0)
    eventually(lambda: "drain" not in node.flags(2), what="the endpoint takes requests again")
    assert "lost" not in node.gpu(3)["flags"]
    assert node.gpu(3)["xid_count"] == count + 1


def test_the_snapshot_command_shows_the_boards_and_why_an_endpoint_drains(node: Node) -> None:
    node.boards.set(1, util=73, mem_used_mib=40_000, power_mw=512_000, temp=66, remap_failed=1)
    eventually(lambda: "drain" in node.flags(1))
    command = [*zerohop_command("snapshot", "--shm-dir", node.shm_dir), "--json"]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=20).stdout)
    board = shown["gpus"][1]
    assert (board["uuid"], board["name"], board["utilization"]) == (uuid_of(1), "NVIDIA H100 80GB HBM3", 0.73)
    assert (board["power_watts"], board["temperature_celsius"]) == (512, 66)
    assert board["memory_used_bytes"] == 40_000 << 20
    assert "remap_failed" in board["flags"]
    endpoint = next(entry for entry in shown["endpoints"] if entry["address"] == node.addresses[1])
    assert endpoint["reasons"]["drain"] == "row_remap_failure"
    assert endpoint["gpus"] == [uuid_of(1)]
    text = subprocess.run(command[:-1], check=True, capture_output=True, timeout=20, text=True).stdout
    assert "GPU 1 NVIDIA H100 80GB HBM3" in text


def test_an_xid_of_a_program_drains_nothing(node: Node) -> None:
    node.boards.xid(0, 31)
    eventually(lambda: node.gpu(0)["xid_last"] == 31)
    hold(lambda: not node.flags(0), 0.3)


def test_heat_slows_the_endpoints_of_the_board(node: Node) -> None:
    node.boards.set(0, temp=91, reasons=0x40, sm_mhz=990, util=100)
    eventually(lambda: "slowed" in node.flags(0))
    assert node.endpoint(0)["slowdown"] == pytest.approx(2.0, abs=0.01)
    assert node.flags(1) == set()
    node.boards.set(0, temp=60, reasons=0, sm_mhz=1980)
    eventually(lambda: "slowed" not in node.flags(0))


def test_a_hang_of_the_driver_changes_nothing_but_the_gpu_columns(node: Node) -> None:
    node.boards.set(1, remap_failed=1)
    eventually(lambda: "drain" in node.flags(1))
    log_before = len(node.agent.log)
    node.boards.hang("*")
    eventually(lambda: node.gpu(0)["utilization"] is None, what="GPU columns unknown")
    before = node.view()["sequence"]
    hold(lambda: not node.flags(0) and node.flags(1) == {"drain"} and not node.flags(2), 1.0)
    assert node.view()["sequence"] > before
    assert node.view()["host"]["cpu_ratio"] is not None
    assert node.endpoint(0)["observed_age_ms"] < 1000
    told = node.agent.log[log_before:]
    assert "no answer from the driver" in told
    assert told.count("collector failed") == 1, "one line for one change"
    node.boards.hang()
    eventually(lambda: node.gpu(0)["utilization"] == 0, what="a new child reads again")


def test_a_reload_of_the_driver_is_followed_by_uuid(node: Node) -> None:
    node.boards.set("*", util=40)
    eventually(lambda: node.gpu(7)["utilization"] == 0.4)
    node.boards.driver(epoch=1, init=18)
    eventually(lambda: node.gpu(7)["utilization"] is None)
    hold(lambda: not node.flags(0), 0.3)
    node.boards.set(0, gone=1)
    node.boards.driver(init=0, driver=560)
    eventually(lambda: node.gpu(7)["utilization"] == 0.4)
    # Board 0 did not come back: indices have moved, and its endpoint is drained, no other.
    assert node.gpu(7)["index"] == 6
    eventually(lambda: "drain" in node.flags(0))
    assert not node.flags(1)


def test_a_driver_that_hangs_at_the_start_holds_nothing_up(tmp_path: Path, run: Processes) -> None:
    boards = Boards(tmp_path, count=8)
    boards.hang("*")
    agent = run.start(
        *zerohop_command("agent", "--shm-dir", tmp_path / "shm", "--metrics-address", "127.0.0.1:0"),
        env=boards.environment(),
    )
    agent.wait_ready()
    where = re.search(r"metrics=(\S+)", agent.log)
    assert where is not None
    with urllib.request.urlopen(f"http://{where[1]}/healthz", timeout=5) as reply:
        assert reply.status == 200
    agent.stop()


def test_the_reader_of_the_boards_ends_with_an_agent_that_is_killed(tmp_path: Path, run: Processes) -> None:
    boards = Boards(tmp_path, count=1)
    agent = run.start(
        *zerohop_command("agent", "--shm-dir", tmp_path / "shm", "--metrics-address", "off"), env=boards.environment()
    )
    agent.wait_for("GPUs found")
    (child,) = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    boards.hang("*")
    agent.kill()
    eventually(lambda: not Path(f"/proc/{child}").exists())


def test_an_agent_that_lost_its_devices_for_good_ends_so_that_its_container_is_made_anew(
    tmp_path: Path, run: Processes
) -> None:
    boards = Boards(tmp_path, count=1)
    boards.driver(init=999)
    config = tmp_path / "agent.yaml"
    config.write_text('{"gpu": {"exit_after_unknown_errors": 2, "retry": "50ms"}}')
    agent = run.start(
        *zerohop_command("agent", "--config", config, "--shm-dir", tmp_path / "shm", "--metrics-address", "off"),
        env=boards.environment(),
    )
    assert agent.wait(20) == 1
    assert "lost its access to the GPU devices" in agent.log
    assert "Traceback" not in agent.log

"""The demo as a person runs it: what it ends with, and that it leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest

from support.processes import Process, Processes
from support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("box"), pytest.mark.timeout(120)]

MARK = "ZEROHOP_TEST_MARK"


def demo(run: Processes, *flags: str) -> tuple[Process, str]:
    """Start a demo whose every descendant carries a mark in its environment."""
    mark = uuid.uuid4().hex
    return run.zerohop("demo", *flags, env={MARK: mark}, wait=False), mark


def marked(mark: str) -> list[str]:
    """The command lines of all processes with this mark."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


def folders(child: Process) -> list[Path]:
    """The directories that this demo made and that are still there."""
    return [path for place in ("/dev/shm", "/tmp") for path in Path(place).glob(f"zerohop-demo-{child.pid}-*")]


def test_a_demo_ends_with_no_error_and_leaves_nothing(run: Processes) -> None:
    child, mark = demo(run, "--json", "--requests", "200")
    eventually(lambda: folders(child), 30, what="the demo has its directory")
    assert child.wait(100) == 0, child.log
    summary: dict[str, Any] = json.loads(child.log)
    assert (summary["requests"], summary["errors"]) == (200, 0)
    by_role = {endpoint["role"]: endpoint for endpoint in summary["endpoints"]}
    assert len(summary["endpoints"]) == 4
    assert sum(endpoint["picks"] for endpoint in summary["endpoints"]) == 200
    assert by_role["slow"]["picks"] == min(endpoint["picks"] for endpoint in summary["endpoints"])
    assert by_role["drained"]["served_after_drain"] == 0
    assert by_role["drained"]["picks"] > 0
    assert summary["latency_ms"]["picked"]["p50"] > 0
    assert summary["age_at_decision_ms"]["p50"] > 0
    assert marked(mark) == []
    assert folders(child) == []


@pytest.mark.parametrize("phase", ["starting four", "starting agent", "sending"])
def test_ctrl_c_leaves_nothing_in_any_phase(phase: str, run: Processes) -> None:
    child, mark = demo(run, "--requests", "100000")
    child.wait_for(phase, 60)
    assert marked(mark)
    child.signal(signal.SIGINT)
    assert child.wait(30) == 130, child.log
    assert "Traceback" not in child.log
    assert marked(mark) == []
    assert folders(child) == []


def test_a_killed_demo_takes_all_along(run: Processes) -> None:
    child, mark = demo(run, "--requests", "100000")
    child.wait_for("sending", 60)
    assert folders(child)
    child.kill()
    eventually(lambda: marked(mark) == [], 20, what="no process has outlived the demo")
    assert folders(child) == []


def test_a_demo_without_envoy_says_what_to_install(run: Processes, tmp_path: Path) -> None:
    # An empty package named envoy goes before the real one, and nothing on the PATH is named so.
    (tmp_path / "envoy").mkdir()
    (tmp_path / "envoy" / "__init__.py").touch()
    child = run.zerohop("demo", env={"PYTHONPATH": str(tmp_path), "PATH": os.defpath}, wait=False)
    assert child.wait(30) == 2
    assert "Envoy is missing; run: pip install 'zerohop[demo]'" in child.log

"""`zerohop conformance picker` against real picker processes: both fronts, socket, TCP and TLS."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.fleet import Fleet
from support.processes import Processes, free_port, zerohop_command

ADDRESSES = ["127.0.0.1:18000", "127.0.0.1:18001", "[::1]:18000"]


@pytest.fixture
def shm(tmp_path: Path) -> Iterator[Path]:
    with Fleet(tmp_path / "shm", ADDRESSES):
        yield tmp_path / "shm"


def suite(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = zerohop_command("conformance", "picker", *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(("front", "response"), [("native", "skip"), ("native", "observe"), ("grpcio", "observe")])
def test_both_fronts_pass(front: str, response: str, run: Processes, shm: Path, tmp_path: Path) -> None:
    health = f"127.0.0.1:{free_port()}"
    socket = f"unix:{tmp_path}/p.sock"
    run.zerohop(
        "picker", "--shm-dir", shm, "--listen", socket, "--front", front, "--health-address", health,
        "--response", response, "--conformance-headers",
    )  # fmt: skip
    junit = tmp_path / "report.xml"
    done = suite(
        socket, "--health", health, "--pool", ",".join(ADDRESSES), "--steering", "--json", "-", "--junit", str(junit)
    )
    report = json.loads(done.stdout or "{}")
    assert [case for case in report.get("cases", [done.stderr]) if case["result"] != "pass"] == []
    assert done.returncode == 0
    parsed = ElementTree.parse(junit)  # noqa: S314 - our own file
    assert len(parsed.findall(".//testcase")) == len(report["cases"]) > 50


def test_over_tls_with_a_self_signed_certificate(run: Processes, shm: Path) -> None:
    target = f"127.0.0.1:{free_port()}"
    run.zerohop("picker", "--shm-dir", shm, "--listen", target, "--secure-serving")
    done = suite(target, "--tls", "--pool", ",".join(ADDRESSES), "--only", "full-duplex/*")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_pool_that_is_not_the_pickers_fails_by_name(run: Processes, shm: Path, tmp_path: Path) -> None:
    socket = f"unix:{tmp_path}/p.sock"
    run.zerohop("picker", "--shm-dir", shm, "--listen", socket)
    done = suite(socket, "--pool", "10.9.9.9:1", "--only", "full-duplex/one-chunk", "--json", "-")
    assert done.returncode == 1
    (case,) = json.loads(done.stdout)["cases"]
    assert "is none of 10.9.9.9:1" in case["detail"]


def test_nobody_there_is_said_plainly(tmp_path: Path) -> None:
    done = suite(f"unix:{tmp_path}/absent.sock", "--pool", "10.9.9.9:1", "--timeout", "0.2")
    assert (done.returncode, "no picker answers there" in done.stderr) == (2, True)
    assert "Traceback" not in done.stderr

"""What the doctor finds on a node and in a cluster, with real sockets, files and servers."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import subprocess
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

from support.apiserver import ApiServer, custom, pod, pool
from support.kubelet_server import KubeletServer
from support.processes import zerohop_command
from support.raw_server import http, raw_server
from zerohop_agent.discovery.resources import CUSTOM, POOLS_V1, Role
from zerohop_console.doctor import machine, main, shared_memory
from zerohop_console.doctor.finding import Finding, Level
from zerohop_snapshot.writer import SnapshotWriter

OBJECTIVES = CUSTOM[2]
MODELS = next(resource for resource in CUSTOM if resource.role is Role.MODELS)


def doctor(*words: str | Path) -> tuple[int, list[dict[str, str]]]:
    """Exit code and findings of `zerohop doctor --json WORDS`."""
    parser = ArgumentParser()
    main.add_arguments(parser)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = main.run(parser.parse_args(["--json", *map(str, words)]))
    return code, json.loads(output.getvalue())["findings"]


def of(findings: list[dict[str, str]], level: str) -> list[str]:
    return [finding["message"] for finding in findings if finding["level"] == level]


def levels(findings: Any) -> list[tuple[str, str]]:
    return [(finding.level.value, finding.message) for finding in findings]


async def in_thread(*words: str | Path) -> tuple[int, list[dict[str, str]]]:
    return await asyncio.to_thread(doctor, *words)


def test_a_snapshot_that_is_written_is_fine(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    with contextlib.closing(SnapshotWriter(shm)) as writer:
        writer.publish()
        code, findings = doctor("--only", "shm", "--shm-dir", shm)
    assert code == 0
    assert any("snapshot" in message for message in of(findings, "ok"))


def test_absent_and_foreign_snapshots(tmp_path: Path) -> None:
    code, findings = doctor("--only", "shm", "--shm-dir", tmp_path / "none")
    assert code == 1
    assert findings[0]["fix"]
    (tmp_path / "file").touch()
    code, findings = doctor("--only", "shm", "--shm-dir", tmp_path / "file")
    assert [finding["message"] for finding in findings] == [f"{tmp_path / 'file'} is not a directory"]
    (tmp_path / "node.snap").write_bytes(b"x" * 5000)
    code, findings = doctor("--only", "shm", "--shm-dir", tmp_path)
    assert code == 1
    assert any("not a zerohop snapshot" in message for message in of(findings, "fail"))


@pytest.mark.parametrize(
    ("mode", "level"), [(0o750, "ok"), (0o3770, "ok"), (0o770, "warn"), (0o777, "fail"), (0o1777, "ok")]
)
def test_permissions(tmp_path: Path, mode: int, level: str) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    shm.chmod(mode)
    (first, *_) = shared_memory.check(shm)
    assert first.level.value == level


def test_a_disk_is_no_shared_memory(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nnone {tmp_path}/memory tmpfs rw 0 0\n")
    disk, memory = tmp_path / "disk", tmp_path / "memory"
    for each in (disk, memory):
        each.mkdir()
    assert any("writes to a disk" in message for _, message in levels(shared_memory.check(disk, mounts=mounts)))
    assert not any("writes to a disk" in message for _, message in levels(shared_memory.check(memory, mounts=mounts)))


def test_a_label_that_containers_may_not_read(tmp_path: Path) -> None:
    shm, enforce = tmp_path / "shm", tmp_path / "enforce"
    shm.mkdir()
    enforce.write_text("1")
    for label, level in (
        ("system_u:object_r:tmpfs_t:s0", Level.FAIL),
        ("system_u:object_r:container_file_t:s0", Level.OK),
    ):
        try:
            os.setxattr(shm, "security.selinux", label.encode() + b"\0")
        except OSError:
            pytest.skip("this file system takes no security attributes")
        findings = [each for each in shared_memory.check(shm, selinux=enforce) if "SELinux" in each.message]
        assert [each.level for each in findings] == [level]


def test_a_driver_that_hangs_is_found_and_does_not_hang_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_NVML_TIMEOUT_S", 0.2)
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    (finding,) = machine.check_nvml(str(hanging))
    assert finding.level is Level.FAIL
    assert "does not answer" in finding.message


@pytest.mark.parametrize(
    ("says", "level"),
    [("count 8", Level.OK), ("count 0", Level.WARN), ("absent x", Level.SKIP), ("error 18", Level.FAIL)],
)
def test_what_the_driver_says(tmp_path: Path, says: str, level: Level) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho {says}\n")
    program.chmod(0o755)
    (finding,) = machine.check_nvml(str(program))
    assert finding.level is level
    assert bool(finding.fix) == (level in (Level.WARN, Level.FAIL))


async def test_kubelet_sockets(tmp_path: Path) -> None:
    async def findings(resources: Path, pods: Path) -> list[Finding]:
        return [each async for each in machine.check_kubelet(resources, pods)]

    async with KubeletServer(tmp_path) as kubelet:
        found = await findings(kubelet.resources_socket, kubelet.pods_socket)
        assert [each.level for each in found] == [Level.OK, Level.OK]
        import grpc

        kubelet.refuse = grpc.StatusCode.FAILED_PRECONDITION
        found = await findings(kubelet.resources_socket, kubelet.pods_socket)
        assert [each.level for each in found] == [Level.FAIL, Level.FAIL]
        assert all("root" in each.fix for each in found)
    found = await findings(tmp_path / "none", tmp_path / "none")
    assert [each.level for each in found] == [Level.SKIP, Level.SKIP]


async def test_a_cluster_where_all_is_well(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.install(POOLS_V1)
        server.put(pool("llama"))
        server.put(pod("a", ip="127.0.0.1"))
        code, findings = await in_thread("--only", "cluster", "--kubeconfig", server.kubeconfig(tmp_path))
        assert code == 0, findings
        assert any("1 endpoints of 1 pods" in message for message in of(findings, "ok"))


async def test_a_cluster_where_much_is_wrong(tmp_path: Path) -> None:
    async with ApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path)
        words = ("--only", "cluster", "--kubeconfig", kubeconfig)
        _, findings = await in_thread(*words)
        assert any("CRD is not installed" in message for message in of(findings, "fail"))
        server.install(POOLS_V1, OBJECTIVES)
        _, findings = await in_thread(*words)
        assert any("no InferencePool" in message for message in of(findings, "warn"))
        server.put(pool("llama"))
        server.put(custom(OBJECTIVES, "broken", {"poolRef": {}}))
        _, findings = await in_thread(*words, "--pool", "default/llama", "--pool", "default/none")
        messages = of(findings, "fail")
        assert any("selects no pod" in message for message in messages)
        assert any("InferenceObjective default/broken is not valid" in message for message in messages)
        assert any("no InferencePool default/none" in message for message in messages)
        server.put(pod("a", ip="127.0.0.1", ready=False))
        _, findings = await in_thread(*words)
        assert any("0 of them Ready" in message for message in of(findings, "fail"))
        server.forbid("watch", "pods")
        server.forbid("list", "inferenceobjectives")
        code, findings = await in_thread(*words)
        (message,) = [each for each in of(findings, "fail") if "not allowed" in each]
        assert "watch pods (to find model servers)" in message
        assert "list inferenceobjectives (for priorities)" in message
        assert code == 1
    _, findings = await in_thread(*words)
    assert any("does not answer" in message for message in of(findings, "fail"))


BROKEN_CONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1", certificate-authority: /nowhere/ca.crt}}]
users: [{name: a, user: {token: x}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
"""


@pytest.mark.parametrize(
    "text", [BROKEN_CONFIG, "clusters: [", "", None], ids=["no authority", "torn", "empty", "absent"]
)
def test_a_configuration_that_cannot_be_used_is_a_finding(text: str | None, tmp_path: Path) -> None:
    config = tmp_path / "config"
    if text is not None:
        config.write_text(text)
    code, findings = doctor("--only", "cluster", "--kubeconfig", config)
    assert [finding["level"] for finding in findings] == ["fail"], findings
    assert findings[0]["fix"]
    assert code == 1


def test_a_machine_without_kubernetes_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    code, findings = doctor("--only", "cluster")
    assert [finding["level"] for finding in findings] == ["skip"]
    assert code == 0


async def test_permissions_to_write_statuses_are_asked_for_where_there_are_models(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.install(POOLS_V1, MODELS)
        words = ("--only", "cluster", "--kubeconfig", server.kubeconfig(tmp_path))
        _, findings = await in_thread(*words)
        assert any("may write the conditions" in message for message in of(findings, "ok"))
        server.forbid("update", "inferencemodels/status")
        server.forbid("create", "leases")
        code, findings = await in_thread(*words)
        (message,) = [each for each in of(findings, "warn") if "conditions" in each]
        assert "update inferencemodels/status" in message
        assert "create leases" in message
        assert code == 0
        _, findings = await in_thread(*words, "--no-write-status")
        assert not [each for each in of(findings, "warn") if "conditions" in each]


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_sockets_of_another_user_are_a_finding_and_no_traceback() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o700)
        done = subprocess.run(
            [
                "setpriv", "--reuid", "10001", "--regid", "10000", "--clear-groups",
                *zerohop_command("doctor", "--only", "kubelet", "--kubelet-socket", f"{folder}/pods-api.sock"),
            ],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    if "Permission denied" in done.stderr and "zerohop" not in done.stdout:
        pytest.skip("this interpreter is in a folder that other users may not enter")
    assert "Traceback" not in done.stderr
    assert "run the agent's container as user 0" in done.stdout
    assert done.returncode == 1


async def test_endpoints_are_read_as_the_agent_reads_them(tmp_path: Path) -> None:
    page = (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
        'vllm:num_requests_waiting{engine="0",model_name="m"} 1.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n'
    )

    text = "Content-Type: text/plain; version=0.0.4\r\n"
    pages = [http(body.encode(), headers=text) for body in (page, "<html>hello</html>")]
    async with raw_server(pages[0]) as good, raw_server(pages[1]) as html:
        endpoints = (good.address, html.address, "127.0.0.1:1")
        words = (word for endpoint in endpoints for word in ("--endpoint", str(endpoint)))
        code, findings = await in_thread("--only", "endpoints", *words)
    assert code == 1
    assert [finding["level"] for finding in findings] == ["ok", "fail", "fail"]
    assert "vllm, waiting 1, running 3" in findings[0]["message"]
    assert all(finding["fix"] for finding in findings[1:])


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ("--scrape-interval 50ms", "ok"),
        ("--scrape-interval 1s --stale-after 1s", "warn"),
        ("--scrape-interval 50", "fail"),
        ("--publish-interval 0", "fail"),
        ("--no-such-flag", "fail"),
        ("", "skip"),
    ],
)
def test_intervals_and_bounds_of_an_agent(words: str, level: str) -> None:
    code, findings = doctor("--only", "agent", f"--agent-args={words}")
    assert findings[0]["level"] == level
    assert code == (1 if level == "fail" else 0)


def test_people_get_lines_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    main.add_arguments(parser)
    assert main.run(parser.parse_args(["--only", "shm", "--shm-dir", str(tmp_path / "none")])) == 1
    output = capsys.readouterr().out
    assert "FAIL shm" in output
    assert "-> start the agent" in output
    assert "1 failed, 0 warnings, 0 fine" in output

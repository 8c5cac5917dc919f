"""Flags, and what a person is told about wrong ones; a real agent shows that it is one line and exit code 2."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import zerohop_command
from zerohop_agent.discovery.flags import add_arguments, from_arguments
from zerohop_agent.discovery.settings import KUBELET_PODS_SOCKETS, DiscoverySettings
from zerohop_agent.kubelet.pods_api import POD_SOCKETS
from zerohop_process.errors import ConfigError

#: Names a certificate authority that is not there.
WITHOUT_ITS_AUTHORITY = """
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1", certificate-authority: /nowhere/ca.crt}}]
users: [{name: a, user: {token: x}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
"""


def read(*words: str) -> DiscoverySettings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_arguments(parser)
    return from_arguments(parser.parse_args(list(words)))


@pytest.fixture(autouse=True)
def no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["--discovery", "api"], "--node-name"),
        (["--discovery", "kubelet", "--scope", "pool"], "--node-name"),
        (["--namespaces", "A b"], "--namespaces"),
        (["--pool", "llama"], "--pool"),
        (["--pool", "a/b/c"], "--pool"),
        (["--pod-selector", "app=x"], "--target-ports"),
        (["--target-ports", "1"], "--pod-selector"),
        (["--pod-selector", "app in (x)", "--target-ports", "1"], "--pod-selector"),
        (["--pod-selector", "app=x", "--target-ports", "1,1"], "twice"),
        (["--pod-selector", "app=x", "--target-ports", "0"], "--target-ports"),
        (["--pod-selector", "app=x", "--target-ports", "1,2,3,4,5,6,7,8,9"], "at most 8"),
        (["--pod-selector", "app=x", "--target-ports", "1", "--pool", "a/b", "--pool", "a/c"], "--pod-selector"),
        (["--model-server-port", "0"], "--model-server-port"),
    ],
)
def test_mistakes_name_the_flag(words: list[str], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        read(*words)


def test_node_and_namespace_come_from_the_downward_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "node-a")
    monkeypatch.setenv("POD_NAMESPACE", "serving")
    monkeypatch.setenv("POD_NAME", "zerohop-x")
    settings = read("--discovery", "auto")
    assert (settings.node_name, settings.lease_namespace) == ("node-a", "serving")
    assert settings.identity.startswith("zerohop-x_")


@pytest.mark.parametrize(
    "words",
    [
        ["--discovery", "api", "--node-name", "n", "--kubeconfig", "/etc/hostname"],
        ["--discovery", "kubelet", "--node-name", "n", "--kubelet-socket", "/nowhere"],
        ["--discovery", "api", "--node-name", "n", "--kubeconfig", "{config}"],
    ],
)
def test_a_source_that_cannot_be_used_is_one_line(words: list[str], tmp_path: Path) -> None:
    flags = ["--shm-dir", str(tmp_path / "shm"), "--metrics-address", "off", "--gpu", "off"]
    config = tmp_path / "config"
    config.write_text(WITHOUT_ITS_AUTHORITY)
    words = [word.format(config=config) for word in words]
    done = subprocess.run(
        [*zerohop_command("agent", *flags), *words], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("zerohop agent: error: ")
    # Whoever waits for the line that says ready must not take this for a start.
    assert not [line for line in done.stderr.splitlines() if line.startswith("ready")]


def test_discovery_through_the_api_server_does_not_load_grpc() -> None:
    """20 MB that an agent without a kubelet socket need not hold."""
    code = "import sys, zerohop_agent.discovery.session, zerohop_agent.main; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0


@pytest.mark.parametrize(
    ("command", "code"), [("agent --discovery api --node-name n", 2), ("doctor --only cluster", 0)]
)
def test_without_lightkube_there_is_one_line(command: str, code: int, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['lightkube'] = None; from zerohop_console.main import main; "
        f"sys.exit(main({command.split()!r} + ['--shm-dir', {str(tmp_path / 'shm')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == code, done.stderr
    assert "pip install 'zerohop[kubernetes]'" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_both_parts_look_for_the_kubelet_in_the_same_places() -> None:
    assert KUBELET_PODS_SOCKETS == POD_SOCKETS

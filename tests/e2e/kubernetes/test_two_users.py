"""Agent and picker as the DaemonSet runs them: two users, one group, one directory, and no way into the other's files.

Needs root, to become those users. The directory is made as its volume and its init container make it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.manifests import of_kind, rendered
from support.processes import Processes, zerohop_command
from support.waiting import eventually
from zerohop_snapshot.reader import SnapshotReader

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"),
]


def spec() -> Any:
    (daemonset,) = of_kind(rendered("base"), "DaemonSet")
    return daemonset["spec"]["template"]["spec"]


def ids() -> tuple[int, int, int]:
    """User of the agent, user of the picker, their group."""
    found = spec()
    users = {each["name"]: each["securityContext"]["runAsUser"] for each in found["containers"]}
    group = found["securityContext"]["fsGroup"]
    assert found["securityContext"]["runAsGroup"] == group
    return users["agent"], users["picker"], group


def as_user(user: int, group: int, *command: str | Path) -> list[str]:
    return [
        "setpriv", "--reuid", str(user), "--regid", str(group), "--groups", str(group), "--inh-caps=-all",
        "--bounding-set=-all", "--no-new-privs", *map(str, command),
    ]  # fmt: skip


def attempt(user: int, group: int, code: str, *arguments: str | Path) -> str:
    """What Python code says when this user runs it."""
    done = subprocess.run(
        as_user(user, group, sys.executable, "-c", code, *arguments),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


WRITE = "import sys; f = open(sys.argv[1], 'r+b'); f.write(b'x'); print('written')"
MAP = "import sys, mmap, os; mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0); print('mapped')"
REPLACE = "import sys, os; open(sys.argv[2], 'wb').write(b'x'); os.replace(sys.argv[2], sys.argv[1]); print('replaced')"
REMOVE = "import sys, os; os.unlink(sys.argv[1]); print('removed')"
READ = "import sys; print(len(open(sys.argv[1], 'rb').read()) > 0)"


@pytest.fixture
def volume() -> Iterator[Path]:
    """An emptyDir with fsGroup: root's, group-writable, setgid; below /tmp, whose parents everyone may pass."""
    _, _, group = ids()
    folder = Path(tempfile.mkdtemp(prefix="zerohop-volume-"))
    os.chown(folder, 0, group)
    folder.chmod(0o2777)
    yield folder
    shutil.rmtree(folder)


def test_the_picker_cannot_write_the_snapshot(run: Processes, volume: Path) -> None:
    agent_user, picker_user, group = ids()
    if attempt(picker_user, group, "print('runs')") != "runs":
        pytest.skip("this interpreter is in a folder that other users may not enter")
    (made,) = spec()["initContainers"]
    shm = volume / "shm"
    command = [word.replace("/run/zerohop/shm", str(shm)) for word in made["command"]]
    subprocess.run(as_user(made["securityContext"]["runAsUser"], group, *command), check=True, timeout=30)
    server = run.zerohop("mock-server", "--listen", "127.0.0.1:0")
    address = server.log.split("address=")[1].split()[0]
    flags: list[str | Path] = [
        "--shm-dir",
        shm,
        "--file-group",
        str(group),
        "--endpoint",
        address,
        "--metrics-address",
        "off",
        "--gpu",
        "off",
    ]
    agent = run.start(*as_user(agent_user, group, *zerohop_command("agent", *flags)), wait=True)
    picker = run.start(
        *as_user(
            picker_user, group, *zerohop_command("picker", "--shm-dir", shm, "--listen", f"unix:{shm}/picker.sock")
        ),
        wait=True,
    )
    snapshot = shm / "node.snap"
    assert (snapshot.stat().st_uid, snapshot.stat().st_gid) == (agent_user, group)
    assert attempt(picker_user, group, READ, snapshot) == "True"
    for code in (WRITE, MAP, REMOVE, REPLACE):
        assert "Error" in attempt(picker_user, group, code, snapshot, shm / "mine"), code
    cells = [path for path in shm.iterdir() if path.stat().st_uid == picker_user]
    assert any(path.suffix == ".cell" for path in cells)
    for path in cells:
        assert "Error" in attempt(agent_user, group, WRITE, path), path
    # A third user of the node sees nothing at all.
    assert "Error" in attempt(10099, 10099, READ, snapshot)
    reader = SnapshotReader(shm)
    try:
        eventually(lambda: (found := reader.read()) is not None and found.endpoint_count == 1)
    finally:
        reader.close()
    picker.stop()
    agent.stop()

"""What a demo leaves when nobody can clean up any more: nothing, grandchildren included."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.waiting import eventually
from zerohop_console.demo.keeper import Keeper

# A child that leads its own group, and a grandchild in it; both would wait for ever.
PROGRAM = """
import os, pathlib, signal, subprocess, sys
from zerohop_console.demo.keeper import Keeper
folder = pathlib.Path(sys.argv[1])
keeper = Keeper(folder)
code = "import subprocess, sys; subprocess.run(['sleep', '1000'])"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.DEVNULL)
keeper.tell(child.pid)
(folder / "file").write_text("left")
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def members(group: int) -> list[str]:
    """The processes of a group that are not yet gone."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                fields = (process / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(process.name)
    return found


def test_after_a_kill_neither_processes_nor_files_are_left(tmp_path: Path) -> None:
    folder = tmp_path / "with a space"
    folder.mkdir()
    done = subprocess.run([sys.executable, "-c", PROGRAM, folder], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    group = int(done.stdout)
    try:
        eventually(lambda: not folder.exists(), 20, what="the directory is gone")
        eventually(lambda: members(group) == [], 20, what="the group is gone")
    finally:
        for left in members(group):
            os.kill(int(left), signal.SIGKILL)


async def test_after_an_ordinary_end_it_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    keeper = Keeper(tmp_path)
    keeper.tell(2**22 + 1)
    await keeper.close()
    assert (tmp_path / "file").read_text() == "mine"

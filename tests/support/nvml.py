"""The NVML stand-in (tests/native/nvml): built with the system's C compiler, and told what to play.

boards = Boards(tmp_path, count=8)
environment = boards.environment()        # for a process that shall find the stand-in
boards.set(3, temp=88, reasons=0x40, sm_mhz=900)
boards.xid(3, 79)
boards.driver(init=18)
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_SOURCE = Path(__file__).parents[1] / "native" / "nvml" / "nvml_stand_in.c"


def library_folder() -> Path:
    """A folder with the stand-in as `libnvidia-ml.so.1`; built once per source text. Skips without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the NVML stand-in with")
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"zerohop-nvml-{os.getuid()}-{digest}"
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        mine = folder / f"{os.getpid()}.so"  # several test workers may build at once
        flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, "-o", str(mine), str(_SOURCE)], check=True, timeout=60)
        mine.rename(library)
    return folder


def uuid_of(board: int, instance: int = 0) -> str:
    """The UUID that the stand-in gives a board, or a MIG instance (numbered from 1)."""
    return f"{'MIG' if instance else 'GPU'}-5afe0000-0000-4000-8000-{instance:06d}{board:06d}"


class Boards:
    """The control file of one stand-in: written whole and renamed at each change."""

    def __init__(self, directory: Path, count: int = 8) -> None:
        self.path = directory / "nvml-control"
        self._driver: dict[str, int | str] = {"boards": count, "init": 0, "epoch": 0}
        self._words: list[str] = []
        self._values: dict[tuple[str, str], int] = {}
        self._xids = 0
        self._write()

    def environment(self) -> dict[str, str]:
        """Environment variables for a process that shall find the stand-in."""
        return {"LD_LIBRARY_PATH": str(library_folder()), "ZEROHOP_NVML_CONTROL": str(self.path)}

    @property
    def event_waits(self) -> int:
        """How often somebody has waited for events so far."""
        waits = self.path.with_name(self.path.name + ".waits")
        return waits.stat().st_size if waits.exists() else 0

    def set(self, board: int | str, **values: int) -> None:
        """Set values of one board, or of all with `"*"`."""
        self._values.update({(str(board), key): value for key, value in values.items()})
        self._write()

    def heal(self) -> None:
        """Every board is well again and answers as at the start."""
        self._values = {key: value for key, value in self._values.items() if key[1] in ("xid", "xid_seq")}
        self._words = []
        self._driver["init"] = 0
        self._write()

    def xid(self, board: int, code: int) -> None:
        """Raise an XID event on the board."""
        self._xids += 1
        self.set(board, xid=code, xid_seq=self._xids)

    def driver(self, **values: int) -> None:
        """Set values of the driver: `boards`, `init`, `epoch`, `driver`."""
        self._driver.update(values)
        self._write()

    def hang(self, *calls: str) -> None:
        """Make these calls never return; none: no call hangs, and those that do go on."""
        self._words = [f"hang {call}" for call in calls] + [word for word in self._words if word[:4] != "hang"]
        self._write()

    def missing(self, *calls: str) -> None:
        """Make these symbols missing, as in an older driver."""
        self._words = [f"missing {call}" for call in calls] + [word for word in self._words if word[:7] != "missing"]
        self._write()

    def _write(self) -> None:
        lines = [f"{key} {value}" for key, value in self._driver.items()]
        lines += self._words
        # Values for all boards first: a later line wins.
        ordered = sorted(self._values.items(), key=lambda item: item[0][0] != "*")
        lines += [f"gpu {board} {key} {value}" for (board, key), value in ordered]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.rename(self.path)

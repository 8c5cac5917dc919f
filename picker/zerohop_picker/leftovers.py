"""Files of workers that died without cleaning up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

# A worker that has just created its lock file has not locked it yet; nobody takes longer than this to do so.
SETTLED_S = 60.0


def remove_dead_cells(folder: Path) -> int:
    """Remove the cells in `folder` whose writers are gone (nobody holds their lock); return how many."""
    removed = 0
    for lock_path in folder.glob("picker-*.cell.lock"):
        with contextlib.suppress(OSError):
            if time.time() - lock_path.stat().st_mtime < SETTLED_S:
                continue
            fd = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock_path.with_suffix("").unlink(missing_ok=True)
                lock_path.unlink()
                removed += 1
            finally:
                os.close(fd)
    return removed

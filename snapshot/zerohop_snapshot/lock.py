"""One writer per file: an flock on `FILE.lock`, held as long as the writer lives (the kernel drops it at any death)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from .errors import SnapshotError, WriterLocked

__all__ = ["WriterLock"]


class WriterLock:
    """The exclusive right to write `path`; taken by the constructor.

    Raises: WriterLocked when another process holds it, SnapshotError when the lock file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        while True:
            self._fd = self._open_and_lock(path)
            try:
                if self.path.stat().st_ino == os.fstat(self._fd).st_ino:
                    break
            except FileNotFoundError:
                pass
            os.close(self._fd)  # its last holder removed the file between our open and our lock
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def _open_and_lock(self, path: Path) -> int:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise SnapshotError(
                f"{self.path}: cannot open the lock file ({error.strerror}); give this user write access there"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise WriterLocked(
                f"{path}: already written by another process (pid {holder}); stop it or use another --shm-dir"
            ) from None
        return fd

    def release(self) -> None:
        """Give the right back; the lock file stays, since removing it could split two later writers."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

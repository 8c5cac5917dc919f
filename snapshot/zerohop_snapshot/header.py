"""The header that every file of the shm directory starts with, and who wrote it.

    offset size type  field
    0      8    bytes magic            b"ZEROHOP\\0"
    8      4    bytes kind             SNAP, ENGC (engine cell), PICK (picker cell), PFXD (prefix directory), SESS
    12     4    u32   layout_version   of this kind
    16     4    u32   byte_order       0x01020304 as the writer stores it: readers of the other order see 0x04030201
    20     4    u32   header_bytes     256
    24     8    u64   file_bytes       whole size; a shorter file is not mapped
    32     16   bytes boot_id          times of another boot mean nothing
    48     8    u64   pid_namespace    inode of the writer's pid namespace; pids compare only inside one
    56     4    u32   writer_pid
    60     4    u32   reserved
    64     8    u64   writer_start     start time of that pid in clock ticks (field 22 of /proc/PID/stat)
    72     8    u64   created_wall_ns  for people
    80     48         reserved
    128    128        fields of the kind

Files are created whole under a temporary name, pre-allocated, then renamed: a full tmpfs fails here with a sentence
and not later as SIGBUS. They are never shrunk or truncated; another size is another inode.
"""

from __future__ import annotations

import errno
import grp
import mmap
import os
import struct
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import SnapshotError

__all__ = [
    "HEADER_BYTES",
    "MAGIC",
    "FileHeader",
    "Identity",
    "boot_id",
    "create_file",
    "map_file",
    "own_identity",
    "prepare_directory",
    "process_is_alive",
    "read_header",
]

MAGIC: Final = b"ZEROHOP\0"
HEADER_BYTES: Final = 256
BYTE_ORDER: Final = 0x01020304
_HEADER: Final = struct.Struct("<8s4sIIIQ16sQIIQQ")


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, told apart from a later one with the same pid."""

    boot_id: bytes
    pid_namespace: int
    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The common fields of a file's header."""

    kind: bytes
    version: int
    file_bytes: int
    writer: Identity
    created_wall_ns: int

    def pack(self) -> bytes:
        """The first 80 bytes of the file."""
        w = self.writer
        return _HEADER.pack(
            MAGIC, self.kind, self.version, BYTE_ORDER, HEADER_BYTES, self.file_bytes,
            w.boot_id, w.pid_namespace, w.pid, 0, w.start, self.created_wall_ns,
        )  # fmt: skip


def boot_id() -> bytes:
    """The 16 bytes that name this boot of the machine."""
    return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes


def _start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks, None when there is no such process (or it is a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def own_identity() -> Identity:
    """The identity of this process."""
    pid = os.getpid()
    return Identity(boot_id(), Path("/proc/self/ns/pid").stat().st_ino, pid, _start_ticks(pid) or 0)


def process_is_alive(writer: Identity, own: Identity) -> bool | None:
    """Whether the writer still runs; None when that cannot be known from here (another pid namespace)."""
    if writer.boot_id != own.boot_id:
        return False
    if writer.pid_namespace != own.pid_namespace:
        return None
    return _start_ticks(writer.pid) == writer.start


def read_header(raw: bytes) -> FileHeader | None:
    """The header in a file's first bytes; None when they are too short or foreign."""
    if len(raw) < HEADER_BYTES:
        return None
    magic, kind, version, order, header_bytes, size, boot, namespace, pid, _, start, wall = _HEADER.unpack_from(raw)
    if magic != MAGIC or order != BYTE_ORDER or header_bytes != HEADER_BYTES:
        return None
    return FileHeader(kind, version, size, Identity(boot, namespace, pid, start), wall)


def prepare_directory(shm_dir: Path, group: str | None) -> None:
    """Create the shm directory where it is missing.

    Raises: SnapshotError with the path and the fix.
    """
    try:
        if not shm_dir.is_dir():
            shm_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            if group is not None:
                os.chown(shm_dir, -1, _group_id(group))
    except OSError as error:
        raise SnapshotError(
            f"{shm_dir}: cannot create the shm directory ({error.strerror}); name a writable one with --shm-dir"
        ) from error


def _group_id(group: str) -> int:
    if group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise SnapshotError(f"there is no group {group!r}; name one from /etc/group or give its number") from None


def create_file(path: Path, content: bytes, size: int, *, mode: int, group: str | None) -> None:
    """Create `path` whole: `content` at its start, zeros after it, `size` bytes pre-allocated, then renamed into place.

    Raises: SnapshotError with the path and the fix (no space, no permission, not a directory).
    """
    try:
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise SnapshotError(
            f"{path}: cannot create it ({error.strerror}); give this user write access to {path.parent}"
        ) from error
    try:
        os.posix_fallocate(fd, 0, size)
        os.pwrite(fd, content, 0)
        os.fchmod(fd, mode)
        if group is not None:
            os.fchown(fd, -1, _group_id(group))
        Path(temporary).rename(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        if error.errno == errno.ENOSPC:
            raise SnapshotError(
                f"{path}: no room for {size} bytes; give {path.parent} more space or lower the capacities"
            ) from error
        raise SnapshotError(f"{path}: cannot create it ({error.strerror})") from error
    except SnapshotError:
        Path(temporary).unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def map_file(path: Path, *, write: bool) -> tuple[mmap.mmap, os.stat_result]:
    """Map a whole file and say which inode it is.

    Raises: OSError as open and mmap do (absent, no permission); ValueError for an empty file.
    """
    fd = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
        return mmap.mmap(fd, status.st_size, access=access), status
    finally:
        os.close(fd)


def new_header(kind: bytes, version: int, size: int, specific: bytes) -> bytes:
    """The 256 header bytes of a file that this process writes; `specific` are the fields of the kind (<= 128 bytes)."""
    common = FileHeader(kind, version, size, own_identity(), time.time_ns()).pack()
    return common.ljust(128, b"\0") + specific.ljust(128, b"\0")

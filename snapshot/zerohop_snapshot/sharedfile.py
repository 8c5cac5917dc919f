"""Files that many processes write: opened where they fit, else made anew, under a lock held for milliseconds."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path

from .errors import SnapshotError
from .header import HEADER_BYTES, boot_id, create_file, map_file, new_header, prepare_directory, read_header

__all__ = ["open_or_create"]


def open_or_create(
    path: Path,
    kind: bytes,
    version: int,
    size: int,
    *,
    specific: Callable[[], bytes],
    fits: Callable[[mmap.mmap], bool],
    mode: int,
    group: str | None,
) -> mmap.mmap:
    """Map `path` for writing: the file that is there when it is of this kind, version, size and boot and `fits`.

    Else a new one takes its path, with `specific()` as the header's fields of the kind and zeros behind the header.

    Raises: SnapshotError with the path and the fix.
    """
    prepare_directory(path.parent, group)
    lock_path = path.with_name(path.name + ".lock")
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise SnapshotError(
            f"{lock_path}: cannot open it ({error.strerror}); give this user write access there"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mapped = _open(path, kind, version, size)
        if mapped is not None:
            if fits(mapped):
                return mapped
            mapped.close()
        create_file(path, new_header(kind, version, size, specific()), size, mode=mode, group=group)
        return map_file(path, write=True)[0]
    except OSError as error:
        raise SnapshotError(f"{path}: cannot open it ({error.strerror})") from error
    finally:
        os.close(lock)


def _open(path: Path, kind: bytes, version: int, size: int) -> mmap.mmap | None:
    try:
        mapped, _ = map_file(path, write=True)
    except (FileNotFoundError, ValueError):  # absent, or empty
        return None
    header = read_header(mapped[:HEADER_BYTES])
    if (
        header is not None
        and (header.kind, header.version) == (kind, version)
        and header.writer.boot_id == boot_id()
        and header.file_bytes == len(mapped) == size
    ):
        return mapped
    mapped.close()
    return None

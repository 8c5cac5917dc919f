"""Small files with one writer each: what one engine or one picker worker knows, for anyone on the node to read.

`Cell` holds what both kinds share: creation, the writer's lock, and - on the reading side - `CellFolder`, which follows
the directory, drops cells whose writer is dead and re-maps those that were replaced.
"""

from __future__ import annotations

import mmap
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from .errors import SnapshotError
from .header import (
    HEADER_BYTES,
    FileHeader,
    Identity,
    create_file,
    map_file,
    new_header,
    own_identity,
    prepare_directory,
    process_is_alive,
    read_header,
)
from .lock import WriterLock

__all__ = ["CELL_VERSION", "CellFolder", "CellWriter", "MappedCell", "cell_path"]

CELL_VERSION: Final = 1
#: a cell whose writer cannot be looked up (another pid namespace) counts as dead when its heartbeat is older than this
HEARTBEAT_BOUND_NS: Final = 2_000_000_000
_LIST_NS: Final = 250_000_000


def cell_path(shm_dir: Path, prefix: str, name: str) -> Path:
    """`PREFIX-NAME.cell`. Raises: SnapshotError for a name that is not letters, digits, dot, dash, underscore."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise SnapshotError(f"{name!r} cannot name a cell; use at most 100 letters, digits, dots, dashes, underscores")
    return shm_dir / f"{prefix}-{name}.cell"


class CellWriter:
    """A new cell, mapped for writing, and its lock. Removed again by `close`; a crash leaves it for readers to judge.

    Raises: WriterLocked, SnapshotError.
    """

    def __init__(
        self, path: Path, kind: bytes, size: int, specific: bytes, *, mode: int = 0o640, group: str | None = None
    ) -> None:
        self.path: Final = path
        prepare_directory(path.parent, group)
        self._lock = WriterLock(path)
        try:
            create_file(path, new_header(kind, CELL_VERSION, size, specific), size, mode=mode, group=group)
            self._map, status = map_file(path, write=True)
        except OSError as error:
            self._lock.release()
            raise SnapshotError(f"{path}: cannot map it ({error.strerror})") from error
        except BaseException:
            self._lock.release()
            raise
        self._inode = status.st_ino
        self.bytes: Final = memoryview(self._map)
        self.words: Final = self.bytes.cast("Q")

    def close(self) -> None:
        """Remove the file (if the path still names it) and release the map and the lock."""
        try:
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
                self._lock.path.unlink(missing_ok=True)
        except OSError:
            pass  # the directory is gone already, and with it the cell
        try:
            self.words.release()
            self.bytes.release()
            self._map.close()
        except BufferError:
            pass  # somebody still views the memory; it is unmapped with the last view
        self._lock.release()


class MappedCell:
    """A cell mapped for reading: its header, its memory and the inode it came from."""

    def __init__(self, path: Path, header: FileHeader, mapped: mmap.mmap, inode: int) -> None:
        self.path: Final = path
        self.header: Final = header
        self.map: Final = mapped
        self.inode: Final = inode
        self.words: Final = memoryview(mapped).cast("Q")


class _Opens(Protocol):
    @property
    def header(self) -> FileHeader: ...
    @property
    def inode(self) -> int: ...


CellT = TypeVar("CellT", bound=_Opens)


def open_cell(path: Path, kind: bytes) -> MappedCell | None:
    """Map a cell of `kind`; None when it is absent, short, foreign or of another version."""
    try:
        mapped, status = map_file(path, write=False)
    except (OSError, ValueError):
        return None
    header = read_header(mapped[:HEADER_BYTES])
    if header is None or (header.kind, header.version) != (kind, CELL_VERSION) or header.file_bytes != len(mapped):
        mapped.close()
        return None
    return MappedCell(path, header, mapped, status.st_ino)


class CellFolder(Generic[CellT]):
    """The readable cells of one prefix in a shm directory, by path.

    `refresh` lists the directory at most every 250 ms, maps what is new or was replaced, and forgets what is gone.
    """

    def __init__(self, shm_dir: Path, prefix: str, opener: Callable[[Path], CellT | None]) -> None:
        self._shm_dir = shm_dir
        self._pattern = re.compile(re.escape(prefix) + r"-[A-Za-z0-9._-]+\.cell")
        self._open = opener
        self._own: Final = own_identity()
        self._next_list_ns = 0
        self.cells: dict[Path, CellT] = {}

    def refresh(self, now_ns: int | None = None) -> bool:
        """Look at the directory if it is time; True when the set of cells changed."""
        now = time.monotonic_ns() if now_ns is None else now_ns
        if now < self._next_list_ns:
            return False
        self._next_list_ns = now + _LIST_NS
        found: dict[Path, CellT] = {}
        try:
            with os.scandir(self._shm_dir) as entries:
                listed = [(Path(entry.path), entry.inode()) for entry in entries if self._pattern.fullmatch(entry.name)]
        except OSError:
            listed = []
        for path, inode in listed:
            cell = self.cells.get(path)
            if cell is None or cell.inode != inode:
                cell = self._open(path)
            if cell is not None:
                found[path] = cell
        changed = found != self.cells
        self.cells = found
        return changed

    def is_alive(self, writer: Identity, heartbeat_ns: int, now_ns: int) -> bool:
        """Whether a cell's writer runs: by its pid where that can be looked up, else by the age of its heartbeat."""
        alive = process_is_alive(writer, self._own)
        return now_ns - heartbeat_ns <= HEARTBEAT_BOUND_NS if alive is None else alive

"""What can go wrong with a file of the shm directory.

SnapshotError
    WriterLocked    another live process writes this file
    ColdTooLarge    the cold map does not fit its slot
"""

from __future__ import annotations

__all__ = ["ColdTooLarge", "SnapshotError", "WriterLocked"]


class SnapshotError(Exception):
    """A file of the shm directory cannot be created, opened or written; the message names the path and the fix."""


class WriterLocked(SnapshotError):
    """Another process holds the lock of this file; a file has exactly one writer."""


class ColdTooLarge(SnapshotError):
    """The cold map is larger than the capacity that was fixed when the file was created."""

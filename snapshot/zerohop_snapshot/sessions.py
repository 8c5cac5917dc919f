"""`sessions.tab`: which endpoint a session belongs to, shared by all picker workers of a node and kept over restarts.

A fixed table of `sets` x 8 ways. Many writers, no lock: each entry carries a check word over its other words, so a
torn entry is not found rather than wrong.

    fields of the kind SESS, from byte 128: 128 u64 sets, 136 16 bytes key (random)
    byte 256: entries of 32 bytes: u64 key_hash, u32 row, u32 generation, u64 expires_ns (CLOCK_MONOTONIC), u64 check
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from pathlib import Path
from typing import Final

from .header import HEADER_BYTES
from .sharedfile import open_or_create

__all__ = ["SessionTable"]

FILE_NAME: Final = "sessions.tab"
KIND: Final = b"SESS"
VERSION: Final = 1
WAYS: Final = 8
_SPECIFIC: Final = struct.Struct("<Q16s")
_ENTRY: Final = struct.Struct("<QIIQQ")
_SET_BYTES: Final = WAYS * _ENTRY.size
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


def _check(key_hash: int, row: int, generation: int, expires_ns: int) -> int:
    return (key_hash ^ (row << 32 | generation) * 0x9E37_79B9_7F4A_7C15 ^ expires_ns * 0xC2B2_AE3D_27D4_EB4F) & _MASK


class SessionTable:
    """Sessions by key; the keys themselves are not stored, only a keyed hash of them.

    Raises: SnapshotError when the file cannot be created.
    """

    def __init__(self, shm_dir: Path, *, slots: int = 65_536, mode: int = 0o640, group: str | None = None) -> None:
        self.path: Final = shm_dir / FILE_NAME
        self._sets: Final = max(1, -(-slots // WAYS))
        self._map = open_or_create(
            self.path, KIND, VERSION, HEADER_BYTES + self._sets * _SET_BYTES,
            specific=lambda: _SPECIFIC.pack(self._sets, secrets.token_bytes(16)),
            fits=lambda mapped: bool(_SPECIFIC.unpack_from(mapped, 128)[0] == self._sets),
            mode=mode, group=group,
        )  # fmt: skip
        self._key: bytes = _SPECIFIC.unpack_from(self._map, 128)[1]

    def get(self, key: bytes, now_ns: int) -> tuple[int, int] | None:
        """(row, generation) of the session's endpoint; None when there is none or it has expired."""
        key_hash, start = self._locate(key)
        for offset in range(start, start + _SET_BYTES, _ENTRY.size):
            found, row, generation, expires, check = _ENTRY.unpack_from(self._map, offset)
            if found == key_hash and expires > now_ns and check == _check(found, row, generation, expires):
                return row, generation
        return None

    def put(self, key: bytes, row: int, generation: int, expires_ns: int) -> None:
        """Bind the session to an endpoint until `expires_ns`; replaces its old entry, else the one to expire first."""
        key_hash, start = self._locate(key)
        target, first_expiry = start, _MASK
        for offset in range(start, start + _SET_BYTES, _ENTRY.size):
            found, _, _, expires, _ = _ENTRY.unpack_from(self._map, offset)
            if found == key_hash:
                target = offset
                break
            if expires < first_expiry:
                target, first_expiry = offset, expires
        check = _check(key_hash, row, generation, expires_ns)
        self._map[target : target + _ENTRY.size] = _ENTRY.pack(key_hash, row, generation, expires_ns, check)

    def _locate(self, key: bytes) -> tuple[int, int]:
        key_hash = int.from_bytes(hashlib.blake2b(key, digest_size=8, key=self._key).digest(), "little") or 1
        return key_hash, HEADER_BYTES + key_hash % self._sets * _SET_BYTES

"""`zerohop prefix`: size, hit rates and the hottest entries of the prefix directory. Hashes, never text."""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path
from typing import Any

from zerohop_picker.state.names import Names, decode
from zerohop_process.errors import ConfigError
from zerohop_snapshot import SnapshotError, SnapshotReader
from zerohop_snapshot.prefix import FILE_NAME, PrefixDirectory
from zerohop_snapshot.prefixtable import WAYS

_SHAPE = struct.Struct("<QQII")
_SHAPE_OFFSET = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--shm-dir", type=Path, default=Path("/dev/shm/zerohop"), help="shm directory of the pickers")  # noqa: S108
    parser.add_argument("--top", type=int, default=10, help="most recently used entries to show")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print. Raises: ConfigError when there is no directory to read."""
    found = describe(args.shm_dir, args.top)
    print(json.dumps(found, indent=2) if args.json else _text(found))
    return 0


def describe(shm_dir: Path, top: int) -> dict[str, Any]:
    """Return what the directory holds. Raises: ConfigError when it is absent or unreadable."""
    directory = _open(shm_dir)
    stats = directory.stats()
    snapshot = SnapshotReader(shm_dir, node=False).read()
    names = None if snapshot is None else decode(snapshot.cold, snapshot.row_stride)
    hottest = [
        {"hash": f"{tag:08x}", "last_used_ms": age_ms, "endpoints": [_address(names, row) for row in rows]}
        for tag, age_ms, rows in directory.hottest(top)
    ]
    return {
        **stats._asdict(),
        "used_ratio": stats.entries / stats.capacity,
        "prompt_hit_ratio": stats.lookup_hits / stats.lookups if stats.lookups else None,
        "block_hit_ratio": stats.blocks_hit / stats.blocks if stats.blocks else None,
        "hottest": hottest,
    }


def _open(shm_dir: Path) -> PrefixDirectory:
    """Open the directory in the shape it has: opening it in another one would replace it."""
    path = shm_dir / FILE_NAME
    try:
        with path.open("rb") as file:
            head = file.read(_SHAPE_OFFSET + _SHAPE.size)
        _, sets, capacity, _ = _SHAPE.unpack_from(head, _SHAPE_OFFSET)
        inode = path.stat().st_ino
        if not (0 < sets < 1 << 32 and 0 < capacity < 1 << 20):
            raise struct.error
    except FileNotFoundError:
        raise ConfigError(f"{path}: does not exist; a picker with this --shm-dir (or --state-dir) creates it") from None
    except PermissionError:
        raise ConfigError(f"{path}: no permission to read it; join the group that owns it") from None
    except (OSError, struct.error):
        raise ConfigError(f"{path}: is not a prefix directory; remove it and restart the pickers") from None
    if path.stat().st_size < sets * WAYS * 8:
        raise ConfigError(f"{path}: is shorter than its header says; remove it and restart the pickers")
    try:
        directory = PrefixDirectory(shm_dir, entries=sets * WAYS, endpoint_capacity=capacity)
    except SnapshotError as error:
        raise ConfigError(str(error)) from None
    if path.stat().st_ino != inode:
        raise ConfigError(f"{path}: was of another boot or layout version and has been replaced by an empty one")
    return directory


def _address(names: Names | None, row: int) -> str:
    address = names.addresses[row] if names is not None and row < names.rows else None
    return address or f"row {row}"


def _text(found: dict[str, Any]) -> str:
    size = f"{found['size_bytes'] / 2**20:.1f} MiB"
    lines = [
        f"entries     {found['entries']:,} of {found['capacity']:,} ({found['used_ratio']:.1%}), {size}",
        f"prompts     {found['lookups']:,} looked up, {_share(found['prompt_hit_ratio'])} with a hit",
        f"blocks      {found['blocks']:,} looked up, {_share(found['block_hit_ratio'])} found",
        f"inserts     {found['inserts']:,}, {found['evictions']:,} evictions",
    ]
    if found["hottest"]:
        lines += ["", "last used      hash      endpoints"]
        for entry in found["hottest"]:
            lines.append(f"{entry['last_used_ms'] / 1000:>8.2f} s    {entry['hash']}  {', '.join(entry['endpoints'])}")
    return "\n".join(lines)


def _share(ratio: float | None) -> str:
    return "none yet" if ratio is None else f"{ratio:.1%}"

"""`zerohop snapshot`: what the pickers see now, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from zerohop_console import snapshot_view
from zerohop_process import units
from zerohop_process.errors import ConfigError
from zerohop_snapshot.pickercell import PeerCells
from zerohop_snapshot.reader import SnapshotReader

#: memory that every process of the node can map, and no disk behind it
DEFAULT_SHM_DIR = Path("/dev/shm/zerohop")  # noqa: S108


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `zerohop snapshot`."""
    parser.add_argument("--shm-dir", type=Path, default=DEFAULT_SHM_DIR, help="the agent's shm directory")
    parser.add_argument("--json", action="store_true", help="print JSON: one object, or one a line with --watch")
    parser.add_argument("--watch", action="store_true", help="go on until Ctrl-C")
    parser.add_argument(
        "--interval", type=units.duration, default="500ms", metavar="DURATION", help="pause between looks with --watch"
    )


def run(args: argparse.Namespace) -> int:
    """Print what is there; 0, or 1 with a sentence on standard error when there is nothing to read."""
    if args.watch and args.interval < 10_000_000:
        raise ConfigError("--interval: less than 10ms would only show this program itself; take a longer one")
    source = Source(args.shm_dir)
    if not args.watch:
        view = source.look()
        if view is None:
            print(f"zerohop snapshot: {source.why_not()}", file=sys.stderr)
            return 1
        if args.json:
            print(json.dumps(view, indent=2, allow_nan=False))
        else:
            from rich.console import Console

            Console().print(snapshot_view.table(view))
        return 0
    try:
        _watch(source, args.interval / 1e9, as_json=args.json)
    except KeyboardInterrupt:
        return 0
    return 0


class Source:
    """One shm directory: the snapshot and the cells of the picker workers."""

    def __init__(self, shm_dir: Path) -> None:
        self._reader = SnapshotReader(shm_dir)
        self._cells = PeerCells(shm_dir)

    def look(self) -> snapshot_view.View | None:
        """Return the newest state, None when there is none."""
        snapshot = self._reader.read()
        if snapshot is None:
            return None
        now_ns = time.monotonic_ns()
        return snapshot_view.view(snapshot, snapshot_view.in_flight(snapshot, self._cells, now_ns), now_ns)

    def why_not(self) -> str:
        """Return the sentence that says why there is nothing."""
        if self._reader.state in ("absent", "ok") and self._reader.path.exists():
            return f"{self._reader.path}: nothing was published yet; is the agent still starting?"
        return self._reader.detail


def _watch(source: Source, interval_s: float, *, as_json: bool) -> None:
    if as_json:
        for view in _looks(source, interval_s):
            print(json.dumps(view if view is not None else {"error": source.why_not()}, allow_nan=False), flush=True)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=sys.stdout.isatty()) as live:
        for view in _looks(source, interval_s):
            live.update(snapshot_view.table(view) if view is not None else Text(source.why_not()), refresh=True)


def _looks(source: Source, interval_s: float) -> Iterator[snapshot_view.View | None]:
    while True:
        yield source.look()
        time.sleep(interval_s)

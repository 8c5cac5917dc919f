"""What the demo sees of the node while it runs: the snapshot, the picks, and the age of values at decisions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgpack

from zerohop_snapshot.layout import Flag
from zerohop_snapshot.pickercell import PeerCells
from zerohop_snapshot.reader import Snapshot, SnapshotReader


@dataclass(frozen=True, slots=True)
class Seen:
    """One endpoint as the pickers see it now. Unknown is NaN (or None for an age)."""

    waiting: float
    running: float
    kv_cache_usage: float
    in_flight: int
    picks: int
    age_ms: float | None
    draining: bool
    usable: bool


class NodeWatch:
    """Reads a shm directory as a picker does."""

    def __init__(self, shm_dir: Path) -> None:
        self._reader = SnapshotReader(shm_dir, node=False)
        self._cells = PeerCells(shm_dir)
        self._names: dict[int, str] = {}
        self._cold_generation = -1
        self._base: dict[str, int] = {}

    def endpoints(self) -> dict[str, Seen]:
        """Return what is known by endpoint name; empty while there is no snapshot."""
        now_ns = time.monotonic_ns()
        snapshot = self._reader.read(now_ns)
        if snapshot is None:
            return {}
        workers = self._cells.live(now_ns)
        seen: dict[str, Seen] = {}
        for row, name in self._rows(snapshot).items():
            generation, flags = snapshot.column("generation")[row], snapshot.column("flags")[row]
            observed_ns = snapshot.column("observed_ns")[row]
            seen[name] = Seen(
                waiting=snapshot.column("waiting")[row],
                running=snapshot.column("running")[row],
                kv_cache_usage=snapshot.column("kv_cache_usage")[row],
                in_flight=sum(worker.in_flight(row, generation) for worker in workers),
                picks=sum(worker.picks(row, generation) for worker in workers) - self._base.get(name, 0),
                age_ms=(now_ns - observed_ns) / 1e6 if observed_ns else None,
                draining=bool(flags & Flag.DRAIN),
                usable=bool(observed_ns) and not flags & (Flag.DRAIN | Flag.UNHEALTHY | Flag.STALE),
            )
        return seen

    def start_counting(self) -> None:
        """Count picks from now on."""
        self._base = {}
        self._base = {name: seen.picks for name, seen in self.endpoints().items()}

    def ages_ms(self) -> dict[str, float]:
        """Return the age of each endpoint's load values now, by name: what a decision made now would use."""
        now_ns = time.monotonic_ns()
        snapshot = self._reader.read(now_ns)
        if snapshot is None:
            return {}
        observed = snapshot.column("observed_ns")
        return {name: (now_ns - observed[row]) / 1e6 for row, name in self._rows(snapshot).items() if observed[row]}

    def _rows(self, snapshot: Snapshot) -> dict[int, str]:
        if snapshot.cold_generation != self._cold_generation:
            cold = msgpack.unpackb(snapshot.cold, strict_map_key=False) if snapshot.cold else {}
            self._names = {
                row: endpoint.get("name") or endpoint["address"]
                for row, endpoint in (cold.get("endpoints") or {}).items()
            }
            self._cold_generation = snapshot.cold_generation
        flags = snapshot.column("flags")
        return {row: name for row, name in self._names.items() if row < len(flags) and flags[row] & Flag.USED}

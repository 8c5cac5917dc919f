"""A picker between a real Envoy and real backends."""

from __future__ import annotations

from pathlib import Path

from support.fleet import Fleet
from support.gateway import Backend, Envoy, start_envoy
from support.processes import Process, Processes

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
MODES = ("headers-only", "body", "istio-shaped")


class Box:
    """Backends, a snapshot of them, a picker and an Envoy."""

    def __init__(self, run: Processes, folder: Path, servers: list[Backend]) -> None:
        self.run = run
        self.folder = folder
        self.servers = servers
        self.socket = str(folder / "p.sock")
        self.fleet = Fleet(folder / "shm", [f"{host}:{port}" for host, port in (s.address for s in servers)])
        self.picker: Process | None = None

    def start_picker(self, *flags: str, front: str = "native", workers: int = 2) -> Process:
        self.picker = self.run.zerohop(
            "picker", "--shm-dir", self.folder / "shm", "--listen", f"unix:{self.socket}", "--front", front,
            "--workers", str(workers), "--health-checking", "--drain-timeout=5s", *flags,
        )  # fmt: skip
        return self.picker

    def start_envoy(self, manifest: str, workers: int = 2, **more: object) -> Envoy:
        sockets = [self.socket if index == 0 else f"{self.socket}.{index}" for index in range(workers)]
        return start_envoy(
            self.run,
            self.folder,
            manifest,
            picker=sockets,
            servers=[s.address for s in self.servers],
            **more,  # type: ignore[arg-type]
        )

    @property
    def served(self) -> list[int]:
        """How many requests each backend served."""
        return [len(server.served) for server in self.servers]

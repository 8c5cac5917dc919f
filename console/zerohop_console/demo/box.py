"""A node in a box: model servers, agent, picker and Envoy as real processes in a directory of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from zerohop_console.demo.children import Child, ChildFailed, Children
from zerohop_console.demo.client import Client, get, post
from zerohop_console.demo.envoy import PICKED, ROUND_ROBIN, EnvoyPlan, bootstrap, envoy_binary
from zerohop_console.demo.keeper import Keeper
from zerohop_process.address import Address
from zerohop_process.errors import ConfigError
from zerohop_process.strict import load_yaml

_READY_S = 40.0


@dataclass(slots=True)
class Server:
    """One model server of the box."""

    name: str
    address: Address
    child: Child | None
    #: what happens to it in the demo: normal, slow, drained
    role: str = "normal"


class Box:
    """Starts everything, in the order in which it is needed, and leaves nothing behind.

    `async with Box() as box:` then `await box.start(...)`. Raises: ChildFailed, ConfigError.
    """

    def __init__(self) -> None:
        self.children = Children()
        self.servers: list[Server] = []
        self.folder = Path()
        self.agent: Child | None = None
        self.picker: Child | None = None
        self.envoy: Child | None = None
        self.picked_port = 0
        self.round_robin_port = 0
        self.admin_port = 0

    @property
    def shm_dir(self) -> Path:
        """The shm directory."""
        return self.folder / "shm"

    @property
    def endpoints_file(self) -> Path:
        """The endpoints file, watched by the agent."""
        return self.folder / "endpoints.yaml"

    async def __aenter__(self) -> Self:
        self.binary = envoy_binary()
        # Memory, not a disk; and a short path, for the sockets.
        memory = Path("/dev/shm")  # noqa: S108
        self.folder = Path(
            tempfile.mkdtemp(prefix=f"zerohop-demo-{os.getpid()}-", dir=memory if memory.is_dir() else None)
        )
        self.keeper = Keeper(self.folder)
        self.children = Children(self.keeper.tell)
        return self

    async def __aexit__(self, *_: object) -> None:
        # Shielded: a second cancellation must not leave half of it running.
        await asyncio.shield(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        try:
            await self.children.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            await self.keeper.close()

    async def start_mock_servers(self, names: Sequence[str], *flags: str) -> None:
        """Start mock model servers on free ports."""
        command = ("mock-server", "--listen", "127.0.0.1:0", *flags)
        children = [await self._zerohop(name, *command, "--name", name) for name in names]
        for name, child in zip(names, children, strict=True):
            await child.ready(_READY_S)
            line = await child.line(lambda line: " serving " in line, 1.0)
            address = next(word for word in line.split() if word.startswith("address=")).partition("=")[2]
            self.servers.append(Server(name, Address.parse(address), child))

    async def start_path(
        self,
        *,
        workers: int = 2,
        body_mode: str = "BUFFERED",
        observe: bool = False,
        agent_flags: Sequence[str] = (),
        picker_flags: Sequence[str] = (),
    ) -> None:
        """Start agent, picker and Envoy over the servers there are, and wait until a request would be picked.

        With `observe`, answers pass through the picker too, and a request is in flight until its answer has ended.
        """
        self.write_endpoints()
        sockets = [self.folder / "picker.sock", *(self.folder / f"picker.sock.{i}" for i in range(1, workers))]
        agent = await self.start_agent(*agent_flags)
        self.picker = await self._zerohop(
            "picker", "picker", "--shm-dir", self.shm_dir, "--listen", f"unix:{sockets[0]}", "--workers", str(workers),
            "--health-checking", "--drain-timeout", "1s", "--response", "observe" if observe else "skip", *picker_flags,
        )  # fmt: skip
        plan = EnvoyPlan(sockets, [server.address for server in self.servers], body_mode, observe)
        config, admin = self.folder / "envoy.json", self.folder / "admin"
        config.write_text(json.dumps(bootstrap(plan)))
        self.envoy = await self.children.start(
            "envoy",
            [self.binary, "-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning",
             "--admin-address-path", admin],
        )  # fmt: skip
        await agent.ready(_READY_S)
        await self.picker.ready(_READY_S)
        await self._envoy_ready(admin)

    async def start_agent(self, *flags: str) -> Child:
        """Start the agent (again); it is ready when the child says so."""
        self.agent = await self._zerohop(
            "agent", "agent", "--shm-dir", self.shm_dir, "--endpoints-file", self.endpoints_file,
            "--metrics-address", "off", "--gpu", "off", *flags,
        )  # fmt: skip
        return self.agent

    def write_endpoints(self, drained: Sequence[str] = ()) -> None:
        """Write the endpoints file, with the named servers drained. The agent follows it."""
        endpoints = [
            {"address": str(server.address), "name": server.name, **({"drain": True} if server.name in drained else {})}
            for server in self.servers
        ]
        new = self.endpoints_file.with_suffix(".new")
        new.write_text(json.dumps({"endpoints": endpoints}, indent=1))
        load_yaml(new.read_text(), "endpoints")  # JSON is YAML; the agent reads it as such
        new.replace(self.endpoints_file)

    async def admin(self, server: Server, **change: object) -> None:
        """Change a mock server while it runs. Raises: ChildFailed."""
        client = Client(server.address.host, server.address.port, keep_body=True)
        try:
            outcome = await client.send(post("/admin", change))
        finally:
            client.close()
        if not outcome.ok:
            raise ChildFailed(f"{server.name} refused {change}: {outcome.complaint()}")

    async def envoy_stat(self, pattern: str) -> dict[str, int]:
        """Return Envoy's counters and gauges whose names match a regular expression."""
        body = await self._envoy_get(f"/stats?format=json&filter={pattern}")
        return {stat["name"]: stat["value"] for stat in json.loads(body)["stats"] if "value" in stat}

    async def _zerohop(self, name: str, *arguments: str | Path) -> Child:
        return await self.children.start(name, [sys.executable, "-m", "zerohop_console.main", *arguments])

    async def _envoy_ready(self, admin: Path) -> None:
        """Find the ports and wait until both listeners and all servers are usable."""
        assert_running = self.envoy
        deadline = asyncio.get_running_loop().time() + _READY_S
        while True:
            with contextlib.suppress(OSError, ConfigError, ValueError, KeyError):
                self.admin_port = Address.parse(admin.read_text().strip()).port
                listeners = json.loads(await self._envoy_get("/listeners?format=json"))["listener_statuses"]
                ports = {one["name"]: one["local_address"]["socket_address"]["port_value"] for one in listeners}
                self.picked_port, self.round_robin_port = ports[PICKED], ports[ROUND_ROBIN]
                gauges = await self.envoy_stat("membership_healthy")
                servers, workers = (
                    gauges["cluster.picked_servers.membership_healthy"],
                    gauges["cluster.picker.membership_healthy"],
                )
                if servers == len(self.servers) and workers:
                    return
            if assert_running is None or assert_running.process.returncode is not None:
                raise ChildFailed(f"envoy ended:\n{assert_running.tail() if assert_running else ''}")
            if asyncio.get_running_loop().time() > deadline:
                raise ChildFailed(f"envoy was not ready after {_READY_S:g} s:\n{assert_running.tail()}")
            await asyncio.sleep(0.05)

    async def _envoy_get(self, path: str) -> bytes:
        client = Client("127.0.0.1", self.admin_port, keep_body=True)
        try:
            outcome = await client.send(get(path))
        finally:
            client.close()
        if not outcome.ok:
            raise OSError(outcome.complaint())
        return outcome.whole_body()

"""Real vLLM servers (on the CPU, with a tiny model) in the place of the mock ones."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from zerohop_console.demo.box import Box, Server
from zerohop_console.demo.children import ChildFailed
from zerohop_console.demo.client import Client, get
from zerohop_process.address import Address
from zerohop_process.errors import ConfigError

_START_S = 240.0


def serve_script(folder: Path) -> Path:
    """Return the script `serve DIR PORT`: in `folder`, in $ZEROHOP_SHARED/realvllm, or in ../shared/realvllm.

    Raises: ConfigError.
    """
    if not (folder / "venv" / "bin" / "vllm").exists():
        raise ConfigError(f"--real-vllm: {folder} holds no venv/bin/vllm; name the folder that the setup script filled")
    shared = [Path(os.environ["ZEROHOP_SHARED"])] if "ZEROHOP_SHARED" in os.environ else []
    for place in (folder, *(path / "realvllm" for path in shared), Path.cwd().parent / "shared" / "realvllm"):
        if os.access(place / "serve", os.X_OK):
            return place / "serve"
    raise ConfigError("--real-vllm: there is no script named serve beside it; set ZEROHOP_SHARED to where it is")


async def start_real_servers(box: Box, folder: Path, names: Sequence[str]) -> None:
    """Start one real server per name and wait until all are healthy. Raises: ChildFailed, ConfigError."""
    script = serve_script(folder)
    for name in names:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        child = await box.children.start(name, [script, folder, str(port)], {"VLLM_TARGET_DEVICE": "cpu"})
        box.servers.append(Server(name, Address("127.0.0.1", port), child))
    deadline = asyncio.get_running_loop().time() + _START_S
    for server in box.servers:
        client = Client(server.address.host, server.address.port)
        while not (await client.send(get("/health"))).ok:
            if server.child is None or server.child.process.returncode is not None:
                raise ChildFailed(f"{server.name} ended:\n{server.child.tail() if server.child else ''}")
            if asyncio.get_running_loop().time() > deadline:
                raise ChildFailed(f"{server.name} was not healthy after {_START_S:g} s:\n{server.child.tail()}")
            await asyncio.sleep(0.5)
        client.close()

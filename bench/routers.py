"""Other routers on the same model servers: sglang-router, vllm-router and smg, installed from PyPI for one run.

Each gets a virtual environment of its own in a temporary directory, which is removed afterwards. Needs a network.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import generator
from bench.path import box, measure, start_backends
from zerohop_console.demo.box import Box
from zerohop_console.demo.client import Client, post

CONNECTIONS = (1, 64)


@dataclass(frozen=True, slots=True)
class Router:
    """One router: what to install, and how it is started (program in the environment's bin, then flags)."""

    name: str
    requirement: str
    command: Sequence[str]


ROUTERS = (
    Router("sglang-router", "sglang-router", ("python", "-m", "sglang_router.launch_router")),
    Router("vllm-router", "vllm-router", ("vllm-router",)),
    Router("smg", "smg", ("smg", "launch")),
)


def run(duration_s: float = 4.0) -> list[dict[str, Any]]:
    """One row per router and number of connections."""
    return asyncio.run(_run(duration_s))


async def _run(duration_s: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with box() as made:
        if made.envoy is None or made.picker is None:
            raise RuntimeError("the box has not started")
        pids = {"envoy": made.envoy.pid, "picker": made.picker.pid}
        rows += [
            {"router": "envoy + zerohop", **await measure(made.picked_port, pids, c, duration_s)} for c in CONNECTIONS
        ]
        rows += [
            {
                "router": "envoy round robin",
                **await measure(made.round_robin_port, {"envoy": made.envoy.pid}, c, duration_s),
            }
            for c in CONNECTIONS
        ]
    for router in ROUTERS:
        rows += await _other(router, duration_s)
    return rows


async def _other(router: Router, duration_s: float) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="zerohop-bench-") as folder:
        bin_dir = Path(folder) / "bin"
        version = _install(router, Path(folder))
        if version is None:
            return [{"router": f"{router.name}: cannot be installed here"}]
        async with Box() as made:
            await start_backends(made, 2)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            flags = ["--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware", "--worker-urls"]
            flags += [f"http://{server.address}" for server in made.servers]
            program = [str(bin_dir / router.command[0]), *router.command[1:], *flags]
            child = await made.children.start(router.name, program)
            if not await _answers(port):
                print(f"{router.name} {version} does not answer:\n{child.tail()}", file=sys.stderr)
                return [{"router": f"{router.name} {version}: does not answer"}]
            return [
                {"router": f"{router.name} {version}", **await measure(port, {"router": child.pid}, c, duration_s)}
                for c in CONNECTIONS
            ]


def _install(router: Router, folder: Path) -> str | None:
    """Install a router into a new environment and return its version, None where that fails."""
    venv.create(folder, with_pip=True)
    pip = str(folder / "bin" / "pip")
    install = [pip, "install", "--quiet", "--disable-pip-version-check", router.requirement]
    if subprocess.run(install, check=False).returncode != 0:
        return None
    shown = subprocess.run([pip, "show", router.requirement], capture_output=True, text=True, check=True).stdout
    return next(line.split()[1] for line in shown.splitlines() if line.startswith("Version:"))


async def _answers(port: int) -> bool:
    client = Client("127.0.0.1", port)
    try:
        for _ in range(300):
            if (await client.send(post(generator.PATH, generator.BODY.encode()))).ok:
                return True
            await asyncio.sleep(0.1)
        return False
    finally:
        client.close()


def ratios(rows: list[dict[str, Any]]) -> list[str]:
    """Against the median of the other routers."""
    at = {(row["router"], row["c"]): row for row in rows if "c" in row}
    others = [row for (name, c), row in at.items() if c == CONNECTIONS[-1] and not name.startswith("envoy")]
    if not others:
        return ["no other router ran"]
    ours = at["envoy + zerohop", CONNECTIONS[-1]]
    rate = ours["rate"] / statistics.median(row["rate"] for row in others)
    cpu = ours["cpu_us"] / statistics.median(row["cpu_us"] for row in others)
    return [
        f"c={CONNECTIONS[-1]}: throughput / median of the others {rate:.2f} (wanted: 1 or more)",
        f"c={CONNECTIONS[-1]}: CPU per request / median of the others {cpu:.2f} (wanted: 1 or less)",
    ]

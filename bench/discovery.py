"""What discovery costs: memory, CPU, the time from an event to the snapshot, and what a hundred agents ask at once.

    python -m bench.discovery [--pods 1000] [--local 16] [--changes 200]

A real agent follows an API server (tests/support/apiserver.py, in this process) over HTTP; its snapshot is read from
shared memory. CPU is the agent's own, against a run of the same agent without discovery.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.apiserver import ApiServer, pod, pool
from zerohop_agent.discovery.client import ApiClient, load_config
from zerohop_agent.discovery.resources import CUSTOM, POOLS_V1
from zerohop_agent.discovery.session import Discovery
from zerohop_agent.discovery.settings import DiscoverySettings
from zerohop_agent.endpoints import EndpointSet
from zerohop_snapshot.layout import Flag
from zerohop_snapshot.reader import SnapshotReader

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def rss_mb(pid: int) -> float:
    """Resident memory in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def start_agent(shm: Path, *words: str) -> subprocess.Popen[bytes]:
    """An agent without endpoints of its own, whose publisher is slow, so that what is left is discovery."""
    command = [
        sys.executable, "-m", "zerohop_console.main", "agent", "--shm-dir", str(shm), "--metrics-address", "off",
        "--gpu", "off", "--log-level", "error", "--node-name", "node-0", *words,
    ]  # fmt: skip
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def usable(reader: SnapshotReader) -> int:
    """Endpoints that are not draining."""
    snapshot = reader.read()
    if snapshot is None:
        return 0
    return sum(bool(flags & Flag.USED) and not flags & Flag.DRAIN for flags in snapshot.column("flags"))


async def one_agent(pods: int, local: int, changes: int) -> dict[str, Any]:
    """Memory, CPU and latency of one agent."""
    async with ApiServer() as server:
        server.install(POOLS_V1, *CUSTOM[2:])
        server.put(pool("llama"))
        for index in range(pods):
            node = "node-0" if index < local else f"node-{1 + index % 60}"
            # Nothing listens on 127.x:8000: reading such an endpoint is refused and backs off, as cheap as can be.
            server.put(
                pod(f"p{index}", ip=f"127.{1 + index // 60000}.{index // 250 % 240}.{index % 250 + 1}", node=node)
            )
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder)
            config = server.kubeconfig(directory)
            found: dict[str, Any] = {}
            for name, words in (("plain", []), ("discovering", ["--discovery", "api", "--kubeconfig", str(config)])):
                agent = start_agent(directory / name, *words)
                reader = SnapshotReader(directory / name)
                try:
                    while name == "discovering" and usable(reader) < local:  # noqa: ASYNC110 - another process makes it true
                        await asyncio.sleep(0.05)
                    await asyncio.sleep(5)
                    before, started = cpu_s(agent.pid), time.monotonic()
                    # The other nodes' pods change all the time; the field selector keeps that away from this agent.
                    while time.monotonic() - started < 10:
                        server.put(server.get(*_pod(pods - 1)))
                        await asyncio.sleep(0.05)
                    spent = (cpu_s(agent.pid) - before) / (time.monotonic() - started)
                    found[name] = {"rss_mb": round(rss_mb(agent.pid), 1), "cpu_ratio": round(spent, 4)}
                    if name == "discovering":
                        found["event_to_snapshot_ms"] = await latency(server, reader, local, changes)
                        found["rss_mb_after"] = round(rss_mb(agent.pid), 1)
                finally:
                    reader.close()
                    agent.send_signal(signal.SIGTERM)
                    await asyncio.to_thread(agent.wait)
            return found


def _pod(index: int) -> tuple[Any, str]:
    from zerohop_agent.discovery.resources import PODS

    return PODS, f"p{index}"


async def latency(server: ApiServer, reader: SnapshotReader, local: int, changes: int) -> dict[str, float]:
    """Milliseconds from a pod's Ready change at the server to the snapshot."""
    taken = []
    for round_number in range(changes):
        index = round_number % local
        body = server.get(*_pod(index))
        ready = round_number // local % 2 == 1
        body["status"]["conditions"][0]["status"] = "True" if ready else "False"
        wanted = usable(reader) + (1 if ready else -1)
        started = time.perf_counter()
        server.put(body)
        while usable(reader) != wanted:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        taken.append((time.perf_counter() - started) * 1000)
    taken.sort()
    return {
        "p50": round(taken[len(taken) // 2], 1),
        "p99": round(taken[int(len(taken) * 0.99)], 1),
        "max": round(taken[-1], 1),
    }


async def many_agents(count: int, streaming: bool) -> dict[str, Any]:
    """What `count` agents ask for when they start together."""
    async with ApiServer(streaming_lists=streaming) as server:
        server.install(POOLS_V1, *CUSTOM[2:])
        server.put(pool("llama"))
        for index in range(count):
            server.put(pod(f"p{index}", ip=f"10.0.{index // 250}.{index % 250 + 1}", node=f"node-{index}"))
        with tempfile.TemporaryDirectory() as folder:
            config = load_config(server.kubeconfig(Path(folder)))
            heard = [0] * count

            def listener(index: int) -> Any:
                def apply(said: EndpointSet) -> None:
                    heard[index] = len(said.endpoints)

                return apply

            sessions = [
                Discovery(
                    DiscoverySettings(source="api", node_name=f"node-{index}", write_status=False, start_jitter_s=1.0),
                    listener(index),
                    client=ApiClient(config),
                )
                for index in range(count)
            ]
            tasks = [asyncio.create_task(session.run()) for session in sessions]
            started = time.monotonic()
            while sum(heard) < count:  # noqa: ASYNC110 - coarse is enough
                await asyncio.sleep(0.02)
            seconds = time.monotonic() - started
            await asyncio.sleep(1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return {
                "seconds_until_all_know": round(seconds, 2),
                "lists_per_agent": server.count("list") / count,
                "watches_per_agent": server.count("watch") / count,
            }


def main() -> None:
    """Runs all and prints JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--local", type=int, default=16)
    parser.add_argument("--changes", type=int, default=200)
    args = parser.parse_args()
    result = {
        "one_agent": asyncio.run(one_agent(args.pods, args.local, args.changes)),
        "hundred_agents": asyncio.run(many_agents(100, True)),
        "hundred_agents_without_streaming_lists": asyncio.run(many_agents(100, False)),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

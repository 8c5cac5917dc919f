"""Pipelines through a real Envoy: adapters, prefixes over a restart, a plugin that is edited while requests run."""

# ruff: noqa: E501
from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.gateway import Client, Envoy, Reply, ready, start_envoy
from support.processes import Process, Processes, free_ports
from support.waiting import eventually_async
from zerohop_picker.state.names import decode
from zerohop_snapshot import SnapshotReader

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("pipelines"), pytest.mark.timeout(120)]

PROFILES = Path(__file__).parents[3] / "manifests/profiles"


class Stack:
    """Mock model servers, an agent, a picker with two workers, and an Envoy in front."""

    def __init__(self, run: Processes, folder: Path) -> None:
        self.run = run
        self.folder = folder
        self.shm = folder / "shm"
        self.shm.mkdir()
        self.socket = folder / "p.sock"
        self.ports: list[int] = []
        self.picker: Process | None = None
        self.envoy: Envoy | None = None

    def start_servers(self, count: int, *flags: str) -> None:
        self.ports = free_ports(count)
        started = [
            self.run.zerohop(
                "mock-server", "--listen", f"127.0.0.1:{port}", "--name", f"server-{index}", "--model", "base", *flags, wait=False
            )
            for index, port in enumerate(self.ports)
        ]  # fmt: skip
        for server in started:
            server.wait_ready()
        endpoints = [part for port in self.ports for part in ("--endpoint", f"127.0.0.1:{port}")]
        self.run.zerohop(
            "agent", "--shm-dir", self.shm, *endpoints, "--gpu", "off", "--metrics-address", f"127.0.0.1:{free_ports(1)[0]}",
            "--scrape-interval", "50ms",
        )  # fmt: skip

    def start_picker(self, config: Path, *flags: str) -> None:
        self.picker = self.run.zerohop(
            "picker", "--shm-dir", self.shm, "--listen", f"unix:{self.socket}", "--workers", "2", "--health-checking",
            "--config-file", config, *flags,
        )  # fmt: skip

    async def start_envoy(self) -> None:
        sockets = [str(self.socket), f"{self.socket}.1"]
        servers = [("127.0.0.1", port) for port in self.ports]
        self.envoy = start_envoy(self.run, self.folder, "body", picker=sockets, servers=servers)
        await ready(self.envoy, workers=2, servers=len(self.ports))

    async def ask(self, model: str, content: str, tokens: int = 4, headers: dict[str, str] | None = None) -> Reply:
        body = {"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": content}]}
        assert self.envoy is not None
        async with Client(self.envoy) as client:
            return await client.post("/v1/chat/completions", json.dumps(body).encode(), headers)

    def adapters_seen(self) -> dict[str, set[str]]:
        """Server names by adapter in flight, as the pickers see it now."""
        snapshot = SnapshotReader(self.shm).read()
        if snapshot is None:
            return {}
        names = decode(snapshot.cold, snapshot.row_stride)
        running = snapshot.column("lora_running_0")
        index = {f"127.0.0.1:{port}": f"server-{number}" for number, port in enumerate(self.ports)}
        return {
            adapter: {
                index[names.addresses[row] or ""] for row in range(snapshot.row_stride) if running[row] >> slot & 1
            }
            for adapter, slot in names.adapters.items()
        }

    async def until_in_flight(self, adapter: str) -> None:
        await eventually_async(lambda: bool(self.adapters_seen().get(adapter)), 15, what=f"adapter {adapter} in flight")


def server_of(reply: Reply) -> str:
    assert reply.status == 200, (reply.status, reply.body)
    return reply.headers["x-mock-server"]


async def usable(path: Stack, count: int) -> None:
    def seen() -> bool:
        snapshot = SnapshotReader(path.shm).read()
        return snapshot is not None and sum(flags in (1, 129) for flags in snapshot.column("flags")) == count

    await eventually_async(seen, 15, what=f"{count} usable endpoints")


async def test_adapter_requests_go_where_the_adapter_is(run: Processes, tmp_path: Path) -> None:
    path = Stack(run, tmp_path)
    path.start_servers(3, "--adapter", "one", "--adapter", "two", "--max-loras", "1")
    path.start_picker(PROFILES / "lora.yaml")
    await usable(path, 3)
    await path.start_envoy()
    # One long request per adapter puts each on a server of its own and keeps it there.
    holders = []
    for adapter in ("one", "two"):  # one after the other: at the same moment both workers may choose one server
        holders.append(asyncio.create_task(path.ask(adapter, "warm", tokens=400)))
        await path.until_in_flight(adapter)
    homes = path.adapters_seen()
    assert homes["one"] != homes["two"]
    models = [("one", "two", "base")[index % 3] for index in range(100)]
    replies = await asyncio.gather(*(path.ask(model, f"question {index}") for index, model in enumerate(models)))
    served = Counter((model, server_of(reply)) for model, reply in zip(models, replies, strict=True))
    for adapter in ("one", "two"):
        at_home = sum(
            count for (model, server), count in served.items() if model == adapter and server in homes[adapter]
        )
        assert at_home == models.count(adapter), served
    third = {f"server-{number}" for number in range(3)} - homes["one"] - homes["two"]
    assert any(model == "base" and server in third for model, server in served), served
    assert [server_of(reply) for reply in await asyncio.gather(*holders)]


async def test_a_prefix_finds_its_server_from_either_worker_and_after_a_restart(run: Processes, tmp_path: Path) -> None:
    path = Stack(run, tmp_path)
    path.start_servers(3)
    path.start_picker(PROFILES / "sticky.yaml")
    await usable(path, 3)
    await path.start_envoy()
    prefix = "the same eight thousand bytes of beginning " * 190
    home = server_of(await path.ask("base", prefix + "first"))
    # Envoy deals its streams out to both workers.
    later = [server_of(await path.ask("base", prefix + f"question {number}")) for number in range(8)]
    assert set(later) == {home}
    assert path.picker is not None
    path.picker.stop()
    path.start_picker(PROFILES / "sticky.yaml")
    assert path.envoy is not None
    await ready(path.envoy, workers=2, servers=3)
    again = [server_of(await path.ask("base", prefix + f"after {number}")) for number in range(4)]
    assert set(again) == {home}


PLUGIN = """
def score(endpoints, request, *, port):
    return [1.0 if address.endswith(f":{port}") else 0.0 for address in endpoints.addresses()]
"""


def replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)  # noqa: PTH105


async def first_servers(path: Stack, count: int = 4) -> Sequence[str]:
    return [server_of(await path.ask("base", f"question {number}")) for number in range(count)]


async def test_a_users_scorer_is_followed_and_cut_off_when_it_sleeps(run: Processes, tmp_path: Path) -> None:
    path = Stack(run, tmp_path)
    path.start_servers(2)
    plugin, config = tmp_path / "mine.py", tmp_path / "config.yaml"
    plugin.write_text(PLUGIN)
    text = (
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: mine.py:score\n  name: mine\n"
        "  parameters: {port: %d}\nschedulingProfiles:\n- name: default\n  plugins: [{pluginRef: mine}]\n"
    )
    config.write_text(text % path.ports[0])
    metrics = free_ports(1)[0]
    path.start_picker(config, "--metrics-address", f"127.0.0.1:{metrics}")
    await usable(path, 2)
    await path.start_envoy()
    assert set(await first_servers(path)) == {"server-0"}
    replace(config, text % path.ports[1])

    async def until(expected: set[str]) -> None:
        async with asyncio.timeout(20):
            while set(await first_servers(path)) != expected:
                pass

    await until({"server-1"})
    replace(plugin, PLUGIN.replace('f":{port}"', f'":{path.ports[0]}"'))
    await until({"server-0"})
    replace(plugin, "import time\n" + PLUGIN.replace("    return", "    time.sleep(5)\n    return"))
    async with asyncio.timeout(20):  # 5 s a request if nothing cut it off
        await until({"server-0", "server-1"})
        assert len(await first_servers(path, 12)) == 12

"""The shipped Envoy configurations with a real Envoy, real pickers on both fronts, and real backends."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from e2e.picker.box import CHAT, MODES, Box
from support.fleet import Fleet
from support.gateway import MANIFESTS, Backend, Client, Envoy, backends, cluster_of, ready, start_envoy
from support.processes import Processes, free_ports
from zerohop_console.demo.envoy import envoy_binary

# The time is for machines that do much else.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.mark.parametrize("manifest", sorted(path.name for path in MANIFESTS.glob("*.yaml")))
def test_envoy_accepts_the_configuration(manifest: str) -> None:
    command: list[str | Path] = [
        envoy_binary(),
        "-c",
        MANIFESTS / manifest,
        "--mode",
        "validate",
    ]
    done = subprocess.run([*command, "--use-dynamic-base-id"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("front", ["native", "grpcio"])
async def test_every_configuration_picks_and_passes_what_it_carries(run: Processes, folder: Path, front: str) -> None:
    async with backends(3) as servers:
        events = [f"data: {number} {'x' * (number % 97)}\n\n".encode() for number in range(2000)]
        for server in servers:
            server.events = events
        box = Box(run, folder, servers)
        with box.fleet:
            box.fleet.load(0, waiting=50)
            box.fleet.load(1, waiting=50)
            picker = box.start_picker(front=front)
            for manifest in MODES:
                envoy = box.start_envoy(manifest, concurrency=2)
                await ready(envoy, workers=2, servers=3)
                await least_loaded(envoy, servers[2])
                await large_bodies(envoy, servers)
                async with Client(envoy) as client:
                    assert (await client.post("/sse", CHAT)).body == b"".join(events)
                assert envoy.stat("ext_proc.streams_started") > 10, manifest
                assert envoy.stat("ext_proc.streams_failed") == 0, manifest
                assert envoy.stat("ext_proc.spurious_msgs_received") == 0, manifest
            assert " error " not in picker.stop()


async def least_loaded(envoy: Envoy, idle: Backend) -> None:
    """Every request goes to the idle server, whatever destination its client asks for."""
    async with Client(envoy) as client:
        for _ in range(10):
            spoofed = {"x-gateway-destination-endpoint": "1.2.3.4:5"}
            reply = await client.post("/v1/chat/completions", CHAT, spoofed)
            assert (reply.status, reply.server) == (200, idle.name)
            assert idle.served[-1].body == CHAT
            assert idle.served[-1].headers["x-gateway-destination-endpoint"].startswith("127.0.0.1:")
        assert (await client.get("/v1/models")).server == idle.name


async def large_bodies(envoy: Envoy, servers: list[Backend]) -> None:
    """Bodies of any size arrive whole."""
    async with Client(envoy) as client:
        for size in (10, 100_000, 8_000_000):
            body = b'{"model":"m","prompt":"' + os.urandom(size // 2).hex().encode() + b'"}'
            reply = await client.post("/v1/completions", body)
            assert reply.status == 200
            assert next(server for server in servers if server.name == reply.server).served[-1].body == body


@pytest.mark.slow
@pytest.mark.parametrize("front", ["native", "grpcio"])
@pytest.mark.parametrize("manifest", ["body", "istio-shaped"])
async def test_many_large_bodies_at_once(run: Processes, folder: Path, manifest: str, front: str) -> None:
    async with backends(2) as servers:
        box = Box(run, folder, servers)
        with box.fleet:
            picker = box.start_picker(front=front, workers=1)
            envoy = box.start_envoy(manifest, workers=1)
            await ready(envoy, workers=1, servers=2)
            body = b'{"model":"m","prompt":"' + os.urandom(4_000_000).hex().encode() + b'"}'

            async def post() -> int:
                async with Client(envoy) as client:
                    return (await client.post("/v1/completions", body)).status

            assert set(await asyncio.gather(*(post() for _ in range(16)))) == {200}
            assert all(request.body == body for server in servers for request in server.served)
            assert " error " not in picker.stop()


@pytest.mark.parametrize("front", ["native", "grpcio"])
async def test_an_observed_event_stream_is_unchanged_and_no_chunk_held_back(
    run: Processes, folder: Path, front: str
) -> None:
    async with backends(1) as servers:
        box = Box(run, folder, servers)
        with box.fleet:
            box.start_picker("--response=observe", front=front, workers=1)
            envoy = box.start_envoy("istio-shaped", workers=1)
            await ready(envoy, workers=1, servers=1)
            servers[0].events = [f"data: {number} {'x' * (number % 97)}\n\n".encode() for number in range(2000)]
            async with Client(envoy) as client:
                assert (await client.post("/sse", CHAT)).body == b"".join(servers[0].events)
            servers[0].events = [f"data: {number}\n\n".encode() for number in range(100)]
            servers[0].step = asyncio.Semaphore(0)
            async with Client(envoy) as client:
                await client.send("POST", "/sse", CHAT)
                await client.head()
                for event in servers[0].events:
                    servers[0].step.release()  # only now does the server send it
                    async with asyncio.timeout(5):
                        assert await client.chunk() == event
                assert await client.chunk() == b""
            assert envoy.stat("ext_proc.streams_failed") == 0


@pytest.mark.parametrize("front", ["native", "grpcio"])
async def test_envoy_reaches_the_picker_over_tls(run: Processes, folder: Path, front: str) -> None:
    def tls(config: dict[str, Any]) -> None:
        cluster_of(config, "picker")["transport_socket"] = {
            "name": "tls",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "common_tls_context": {"alpn_protocols": ["h2"]},
            },
        }

    (port,) = free_ports(1)
    async with backends(2) as servers:
        box = Box(run, folder, servers)
        with box.fleet:
            box.fleet.load(0, waiting=900)  # more than will be picked within one publish
            box.run.zerohop(
                "picker", "--shm-dir", folder / "shm", f"--listen=127.0.0.1:{port}", f"--front={front}",
                "--secure-serving", "--health-checking",
            )  # fmt: skip
            addresses = [server.address for server in servers]
            picker = [("127.0.0.1", port)]
            envoy = start_envoy(run, folder, "istio-shaped", picker=picker, servers=addresses, change=tls)
            await ready(envoy, workers=1, servers=2)
            async with Client(envoy) as client:
                for _ in range(20):
                    assert (await client.post("/v1/chat/completions", CHAT)).server == "server-1"


async def test_a_clients_fault_is_its_own_and_said(run: Processes, folder: Path) -> None:
    async with backends(1) as servers:
        box = Box(run, folder, servers)
        with box.fleet:
            box.start_picker("--max-request-bytes=100kB", workers=1)
            for manifest in ("body", "istio-shaped"):
                envoy = box.start_envoy(manifest, workers=1)
                await ready(envoy, workers=1, servers=1)
                for body, status in ((b"{not json", 400), (b"[1]", 400), (CHAT + b" " * 100_000, 413), (CHAT, 200)):
                    async with Client(envoy) as client:
                        reply = await client.post("/v1/chat/completions", body)
                        assert reply.status == status
                        assert status == 200 or json.loads(reply.body)["error"]["message"]
            assert len(servers[0].served) == 2


async def test_an_empty_fleet_is_503_with_a_reason(run: Processes, folder: Path) -> None:
    async with backends(1) as servers:
        box = Box(run, folder, servers)
        box.fleet.stop()
        with Fleet(folder / "empty", []):
            run.zerohop("picker", "--shm-dir", folder / "empty", "--listen", f"unix:{box.socket}")
            for manifest in MODES:

                def without_health_checks(config: dict[str, object]) -> None:
                    clusters = config["static_resources"]["clusters"]  # type: ignore[index]
                    next(c for c in clusters if c["name"] == "picker").pop("health_checks")

                envoy = box.start_envoy(manifest, workers=1, change=without_health_checks)
                async with Client(envoy) as client:
                    reply = await client.post("/v1/chat/completions", CHAT)
                assert reply.status == 503
                assert reply.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
                assert json.loads(reply.body)["error"]["code"] == "rejected-no-endpoints"

"""`zerohop picker` as processes: starting, refusing to start, health, metrics, reloading, restarting, leaving."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.fleet import Fleet
from support.fronts import Exchange, destination, request_body, request_headers
from support.h2gateway import resident_bytes
from support.processes import Process, Processes, free_ports, zerohop_command
from support.waiting import eventually, eventually_async
from zerohop_picker._pb import health_pb2
from zerohop_picker.tls import self_signed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
SERVICES = ("", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor")


@pytest.fixture
def shm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shm")


@pytest.fixture
def fleet(shm: Path) -> Iterator[Fleet]:
    with Fleet(shm, ["10.0.0.1:8000", "10.0.0.2:8000"]) as fleet:
        yield fleet


@pytest.fixture
def pools(shm: Path) -> Iterator[Fleet]:
    with Fleet(shm, ["10.0.0.1:8000", "10.0.0.2:8000"], [["prod/chat"], ["prod/code"]]) as fleet:
        yield fleet


def local(path: str) -> Any:
    return grpc.aio.insecure_channel(path, options=[("grpc.use_local_subchannel_pool", 1)])


async def picked(channel: Any, **metadata: str) -> str | None:
    exchange = Exchange(channel, [(name.replace("_", "-"), value) for name, value in metadata.items()])
    await exchange.send(request_headers(), request_body(CHAT, end=True))
    reply = await exchange.next()
    exchange.call.cancel()
    return destination(reply)


async def status_of(channel: Any, service: str) -> int:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )  # fmt: skip
    try:
        return int((await check(health_pb2.HealthCheckRequest(service=service), wait_for_ready=True)).status)
    except grpc.aio.AioRpcError as error:
        return 3 if error.code() is grpc.StatusCode.NOT_FOUND else -1


def metrics(port: int) -> dict[str, float]:
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def failed(*words: str | Path) -> str:
    done = subprocess.run(zerohop_command("picker", *words), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize("front", ["native", "grpcio"])
async def test_a_picker_of_two_workers(run: Processes, shm: Path, pools: Fleet, front: str) -> None:
    health, metrics_port = free_ports(2)
    picker = run.zerohop(
        "picker", "--shm-dir", shm, "--listen", f"unix:{shm}/p", "--pool", f"prod/code=unix:{shm}/code", "--workers=2",
        f"--front={front}", f"--health-address=127.0.0.1:{health}", f"--metrics-address=127.0.0.1:{metrics_port}",
        "--socket-mode=0666",
    )  # fmt: skip
    assert sorted(path.name for path in shm.iterdir() if path.is_socket()) == ["code", "code.1", "p", "p.1"]
    assert (shm / "p").stat().st_mode & 0o777 == 0o666
    async with local(f"127.0.0.1:{health}") as channel:
        for service in (*SERVICES, "liveness", "pool/prod/code"):
            assert await status_of(channel, service) == 1
        assert await status_of(channel, "nope") == 3
    for socket in ("p", "p.1"):
        async with local(f"unix:{shm}/{socket}") as channel:
            assert await picked(channel) is None, "it names none of several pools"
            assert await picked(channel, x_zerohop_pool="prod/chat") == "10.0.0.1:8000"
    async with local(f"unix:{shm}/code.1") as channel:
        assert await picked(channel) == "10.0.0.2:8000"
        # A listener of a pool is of that pool, whatever its peer says.
        assert await picked(channel, x_zerohop_pool="prod/chat") == "10.0.0.2:8000"
    for pid in children(picker) if front == "native" else ():
        assert "cygrpc" not in Path(f"/proc/{pid}/maps").read_text()
        assert resident_bytes(pid) < 90 * 2**20
    seen = metrics(metrics_port)
    assert seen['zerohop_picker_picks_total{worker="0"}'] == 1
    assert seen['zerohop_picker_picks_total{worker="1"}'] == 3
    assert seen['zerohop_picker_workers{worker="supervisor"}'] == 2
    picker.stop()
    assert [path.name for path in shm.iterdir() if path.is_socket() or "picker-" in path.name] == []


async def test_a_dead_worker_is_started_again_and_health_goes_on(run: Processes, shm: Path, fleet: Fleet) -> None:
    health, metrics_port = free_ports(2)
    picker = run.zerohop(
        "picker", "--shm-dir", shm, "--listen", f"unix:{shm}/p", "--workers=2",
        f"--health-address=127.0.0.1:{health}", f"--metrics-address=127.0.0.1:{metrics_port}",
    )  # fmt: skip
    first = children(picker)
    async with local(f"127.0.0.1:{health}") as channel:
        os.kill(first[1], signal.SIGKILL)
        picker.wait_for("worker ended; starting it again")
        assert await status_of(channel, "readiness") == 1
    await eventually_async(lambda: metrics(metrics_port)['zerohop_picker_workers{worker="supervisor"}'] == 2)
    assert metrics(metrics_port)['zerohop_picker_worker_restarts_total{index="1",worker="supervisor"}'] == 1
    assert len(set(children(picker)) - set(first)) == 1
    async with local(f"unix:{shm}/p.1") as channel:
        assert await picked(channel) is not None
    picker.kill()
    for pid in (*first, *children(picker)):
        eventually(lambda pid=pid: not alive(pid))  # type: ignore[misc]


@pytest.mark.parametrize("workers", [1, 2])
async def test_health_while_the_snapshot_is_absent_comes_and_the_picker_drains(
    run: Processes, shm: Path, workers: int
) -> None:
    (health,) = free_ports(1)
    picker = run.zerohop(
        "picker", "--shm-dir", shm, "--listen", f"unix:{shm}/p", f"--workers={workers}",
        f"--health-address=127.0.0.1:{health}", "--drain-timeout=8s", "--response=observe",
    )  # fmt: skip
    async with local(f"127.0.0.1:{health}") as channel:
        assert [await status_of(channel, service) for service in SERVICES] == [2] * 4
        assert await status_of(channel, "liveness") == 1
        with Fleet(shm, ["10.0.0.1:8000"]):
            watch = channel.unary_stream(
                "/grpc.health.v1.Health/Watch", health_pb2.HealthCheckRequest.SerializeToString,
                health_pb2.HealthCheckResponse.FromString,
            )(health_pb2.HealthCheckRequest(service="readiness"))  # fmt: skip
            while (await watch.read()).status != 1:
                pass
            async with local(f"unix:{shm}/p") as streams:
                # Health speaks for any of the workers; this one may look at the folder 250 ms later.
                await eventually_async(lambda: picked(streams))
                exchange = Exchange(streams)
                await exchange.send(request_headers(), request_body(CHAT, end=True))
                await exchange.next()
                picker.signal(signal.SIGTERM)
                assert (await watch.read()).status == 2
                assert await status_of(channel, "liveness") == 1
                await exchange.next()
                assert picker.returncode is None  # the open stream is waited for
                exchange.call.cancel()
    assert await asyncio.to_thread(picker.wait) == 0


async def test_the_pipeline_is_reloaded_whole_or_not_at_all(run: Processes, shm: Path, fleet: Fleet) -> None:
    (metrics_port,) = free_ports(1)
    pipeline = shm / "epp.yaml"
    good = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: queue-scorer\n"
    pipeline.write_text(good)
    picker = run.zerohop(
        "picker", "--shm-dir", shm, "--listen", f"unix:{shm}/p", "--workers=2", "--config-file", pipeline,
        f"--metrics-address=127.0.0.1:{metrics_port}",
    )  # fmt: skip
    loaded = [f'zerohop_picker_config_reloads_total{{flag="config-file",result="loaded",worker="{w}"}}' for w in "01"]
    refused = [name.replace("loaded", "failed") for name in loaded]
    pipeline.write_text(good + "- type: kv-cache-utilization-scorer\n")
    await eventually_async(lambda: [metrics(metrics_port).get(name) for name in loaded] == [1, 1])
    pipeline.write_text(good + "- type: no-such-scorer\n")
    picker.signal(signal.SIGHUP)
    await eventually_async(lambda: [metrics(metrics_port).get(name) for name in refused] == [1, 1])
    assert "no-such-scorer" in picker.wait_for("keeping the configuration in use")
    async with local(f"unix:{shm}/p") as channel:
        assert await picked(channel) is not None
    picker.stop()


async def test_tls_with_client_certificates_that_follow_their_files(run: Processes, shm: Path, fleet: Fleet) -> None:
    first, second, client = self_signed(), self_signed(), self_signed()
    certs = shm / "certs"
    certs.mkdir()
    (certs / "tls.crt").write_bytes(first.certificate)
    (certs / "tls.key").write_bytes(first.key)
    (shm / "ca.crt").write_bytes(client.certificate)
    ports = free_ports(2)
    for front, port in zip(("native", "grpcio"), ports, strict=True):
        run.zerohop(
            "picker", "--shm-dir", shm, "--listen", f"127.0.0.1:{port}", "--secure-serving", f"--cert-path={certs}",
            f"--client-ca={shm}/ca.crt", "--health-checking", f"--front={front}",
        )  # fmt: skip

    def secure(port: int, server: bytes, mine: tuple[bytes, bytes] | None) -> Any:
        key, chain = (None, None) if mine is None else mine
        credentials = grpc.ssl_channel_credentials(server, key, chain)
        options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)

    for port in ports:
        async with secure(port, first.certificate, (client.key, client.certificate)) as channel:
            assert await picked(channel) is not None
        for wrong in (None, (second.key, second.certificate)):
            async with secure(port, first.certificate, wrong) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)
                assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    (certs / "tls.key").write_bytes(second.key)
    (certs / "tls.crt").write_bytes(second.certificate)

    async def renewed(port: int) -> bool:
        async with secure(port, second.certificate, (client.key, client.certificate)) as channel:
            try:
                await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=2)
            except grpc.aio.AioRpcError:
                return False
            return True

    for port in ports:
        await eventually_async(lambda port=port: renewed(port), 15)  # type: ignore[misc]


def test_a_wrong_start_says_why_and_ends_with_2(shm: Path, run: Processes, fleet: Fleet) -> None:
    run.zerohop("picker", "--shm-dir", shm, "--listen", f"unix:{shm}/p")
    assert "in use by another picker" in failed("--shm-dir", shm, "--listen", f"unix:{shm}/p", "--workers=2")
    (shm / "bad.yaml").write_text("kind: Nonsense\n")
    assert "bad.yaml" in failed("--shm-dir", shm, "--listen", f"unix:{shm}/q", "--config-file", shm / "bad.yaml")
    assert sorted(path.name for path in shm.iterdir() if path.is_socket()) == ["p"]


def children(process: Process) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    except OSError:
        return []


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()

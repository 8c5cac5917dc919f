"""A model server that speaks gRPC, behind a real Envoy: calls of every shape arrive whole, in every body mode."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.fleet import Fleet
from support.gateway import HTTP_OPTIONS, backends, cluster_of, ext_proc_of, listener_ports, start_envoy
from support.processes import Processes
from support.waiting import eventually_async

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

MODES = ("FULL_DUPLEX_STREAMED", "GRPC", "BUFFERED", "NONE")
SERVICE = "/vllm.grpc.engine.VllmEngine"


@contextlib.asynccontextmanager
async def engine() -> AsyncIterator[tuple[str, int]]:
    """A gRPC server: Generate answers one message with three, Chat each message with itself."""

    async def generate(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for number in range(3):
            yield request + bytes([number])

    async def chat(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in requests:
            yield message

    class Methods:
        def service(self, details: Any) -> Any:
            if details.method == f"{SERVICE}/Generate":
                return grpc.unary_stream_rpc_method_handler(generate)
            return grpc.stream_stream_rpc_method_handler(chat)

    server = grpc.aio.server()
    methods: Any = Methods()
    server.add_generic_rpc_handlers([methods])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield ("127.0.0.1", port)
    finally:
        await server.stop(None)


def _one_listener_per_mode(config: dict[str, Any]) -> None:
    servers = cluster_of(config, "model-servers")
    del servers["health_checks"]
    servers["typed_extension_protocol_options"] = {
        HTTP_OPTIONS: {
            "@type": f"type.googleapis.com/{HTTP_OPTIONS}",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    (listener,) = config["static_resources"]["listeners"]
    listeners = config["static_resources"]["listeners"] = []
    for mode in MODES:
        echoed = mode in ("FULL_DUPLEX_STREAMED", "GRPC")
        trailers = "SEND" if echoed else "SKIP"
        mine = copy.deepcopy({"static_resources": {"listeners": [listener]}})
        ext_proc_of(mine).update(
            failure_mode_allow=False,
            processing_mode={
                "request_header_mode": "SEND", "request_body_mode": mode, "request_trailer_mode": trailers,
                "response_header_mode": "SEND", "response_body_mode": mode if echoed else "NONE",
                "response_trailer_mode": trailers,
            },
        )  # fmt: skip
        listeners += mine["static_resources"]["listeners"]
        listeners[-1]["name"] = mode


async def _talk(target: str, mode: str) -> None:
    channel: Any
    async with grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_stream(f"{SERVICE}/Generate")(b"prompt" * 30_000, timeout=20)
        assert [message async for message in call] == [b"prompt" * 30_000 + bytes([n]) for n in range(3)]
        if mode == "BUFFERED":
            return  # Envoy waits for the end of the body, so the two sides cannot take turns
        talk = channel.stream_stream(f"{SERVICE}/Chat")(timeout=20)
        for number in range(5):
            await talk.write(b"%d" % number * 1000)
            assert await talk.read() == b"%d" % number * 1000
        await talk.done_writing()
        assert await talk.read() is grpc.aio.EOF
        assert await talk.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("response", ["skip", "observe"])
async def test_calls_of_every_shape(run: Processes, tmp_path: Path, response: str) -> None:
    async with engine() as address, backends(1) as (other,):
        servers = [address, other.address]
        with Fleet(tmp_path / "shm", ["{}:{}".format(*server) for server in servers]) as fleet:
            fleet.load(1, waiting=900)
            socket = str(tmp_path / "p.sock")
            picker = run.zerohop(
                "picker", "--shm-dir", tmp_path / "shm", "--listen", f"unix:{socket}", "--health-checking",
                f"--response={response}",
            )  # fmt: skip
            envoy = start_envoy(
                run, tmp_path, "body", picker=[socket], servers=servers, change=_one_listener_per_mode
            )  # fmt: skip
            await eventually_async(lambda: envoy.healthy("picker") == 1, 30)
            failed = {}
            for mode, port in listener_ports(envoy).items():
                try:
                    await _talk(f"{envoy.host}:{port}", mode)
                except (AssertionError, grpc.aio.AioRpcError) as error:
                    failed[mode] = repr(error)[:300]
            assert failed == {}
            assert envoy.stat("ext_proc.streams_started") >= 7
            assert envoy.stat("ext_proc.streams_failed") == 0
            assert envoy.stat("ext_proc.spurious_msgs_received") == 0
            assert " error " not in picker.stop()

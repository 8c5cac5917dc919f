"""Every pair of body modes that Envoy can ask for, with a real Envoy, in one go: one listener per pair."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.fleet import Fleet
from support.gateway import Backend, Client, Envoy, backends, listener_ports, ready, start_envoy
from support.processes import Processes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

REQUEST_MODES = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED")
#: FULL_DUPLEX_STREAMED where Envoy lets the picker's content-length stand (1.38).
LENGTH_KEPT = "FULL_DUPLEX_STREAMED with allow_content_length_header"
RESPONSE_MODES = ("SKIP", "NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED")
SMALL = b'{"model":"m","messages":[{"role":"user","content":"caf\\u00e9"}],"seed":9007199254740993, "x":1.0e0}'
EVENTS = [b"data: %d %s\n\n" % (number, b"x" * (number % 50)) for number in range(60)] + [b"data: [DONE]\n\n"]


def _one_listener_per_pair(config: dict[str, Any]) -> None:
    (listener,) = config["static_resources"]["listeners"]
    listeners = config["static_resources"]["listeners"] = []
    for request in (*REQUEST_MODES, LENGTH_KEPT):
        for response in RESPONSE_MODES:
            mine = copy.deepcopy(listener)
            mine["name"] = f"{request}/{response}"
            manager = mine["filter_chains"][0]["filters"][0]["typed_config"]
            manager["http_filters"] = [f for f in manager["http_filters"] if not f["name"].endswith("header_mutation")]
            ext_proc = next(f for f in manager["http_filters"] if f["name"].endswith("ext_proc"))["typed_config"]
            ext_proc["failure_mode_allow"] = False
            ext_proc["allow_content_length_header"] = request == LENGTH_KEPT
            ext_proc["processing_mode"] = {
                "request_header_mode": "SEND",
                "request_body_mode": request.split()[0],
                "request_trailer_mode": "SEND" if request.startswith("FULL") else "SKIP",
                "response_header_mode": "SKIP" if response == "SKIP" else "SEND",
                "response_body_mode": "NONE" if response == "SKIP" else response,
                "response_trailer_mode": "SEND" if response.startswith("FULL") else "SKIP",
            }
            listeners.append(mine)


async def _exercise(envoy: Envoy, servers: list[Backend], request_mode: str) -> None:
    chosen = servers[1]
    long = b'{"model":"m","prompt":"' + os.urandom(100_000).hex().encode() + b'"}'
    async with Client(envoy) as client:
        assert (await client.get("/v1/models")).server == chosen.name
        for body, path in ((SMALL, "/v1/chat/completions"), (long, "/v1/completions"), (b"\xff\xfe", "/tokenize")):
            spoofed = {"x-gateway-destination-endpoint": "{}:{}".format(*servers[0].address)}
            reply = await client.post(path, body, spoofed)
            assert (reply.status, reply.server) == (200, chosen.name), path
            received = chosen.served[-1]
            if request_mode == LENGTH_KEPT:
                assert received.headers["content-length"] == str(len(body))
            assert received.body == body
            assert received.headers["x-gateway-destination-endpoint"].split(",")[0] == "{}:{}".format(*chosen.address)
        if request_mode not in ("NONE", "STREAMED"):  # the others do not let the picker see the body, or change it
            await client.post("/v1/chat/completions", SMALL, {"x-llm-d-model-name-rewrite": 'the "é" model'})
            assert chosen.served[-1].body == SMALL.replace(b'"m"', '"the \\"é\\" model"'.encode())
        reply = await client.post("/sse", SMALL)
        assert reply.body == b"".join(EVENTS)
        if request_mode not in ("NONE", "STREAMED"):
            refused = await client.post("/v1/chat/completions", b'{"messages":[]}')
            assert (refused.status, json.loads(refused.body)["error"]["message"]) == (
                400,
                "model not found in request body",
            )


@pytest.mark.parametrize("response", ["skip", "observe"])
async def test_every_pair_of_modes(run: Processes, tmp_path: Path, response: str) -> None:
    async with backends(2) as servers:
        for server in servers:
            server.events = EVENTS
        with Fleet(tmp_path / "shm", ["{}:{}".format(*server.address) for server in servers]) as fleet:
            fleet.load(0, waiting=900)
            socket = str(tmp_path / "p.sock")
            picker = run.zerohop(
                "picker", "--shm-dir", tmp_path / "shm", "--listen", f"unix:{socket}", "--health-checking",
                f"--response={response}",
            )  # fmt: skip
            envoy = start_envoy(
                run, tmp_path, "body", picker=[socket], servers=[server.address for server in servers],
                change=_one_listener_per_pair,
            )  # fmt: skip
            await ready(envoy, workers=1, servers=2)
            failed = {}
            for name, port in listener_ports(envoy).items():
                envoy.port = port
                try:
                    await _exercise(envoy, servers, name.partition("/")[0])
                except (AssertionError, OSError, EOFError) as error:
                    failed[name] = repr(error)[:300]
            assert failed == {}
            assert envoy.stat("ext_proc.streams_failed") == 0
            assert envoy.stat("ext_proc.spurious_msgs_received") == 0
            assert "error" not in picker.stop()


@pytest.mark.parametrize("response", ["skip", "observe"])
async def test_a_body_that_is_asked_for_comes(run: Processes, tmp_path: Path, response: str) -> None:
    """Envoy shows headers alone and allows mode_override: the picker sees the bodies that it needs, and no others."""

    def allow(config: dict[str, Any]) -> None:
        manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        ext_proc = next(f for f in manager["http_filters"] if f["name"].endswith("ext_proc"))["typed_config"]
        ext_proc["failure_mode_allow"] = False
        ext_proc["allow_mode_override"] = True
        ext_proc["processing_mode"] = {"request_header_mode": "SEND", "response_header_mode": "SEND"}

    async with backends(1) as (server,):
        server.events = EVENTS
        with Fleet(tmp_path / "shm", ["{}:{}".format(*server.address)]):
            socket = str(tmp_path / "p.sock")
            flags = ("--health-checking", "--ask-for-body", f"--response={response}")
            run.zerohop("picker", "--shm-dir", tmp_path / "shm", "--listen", f"unix:{socket}", *flags)
            envoy = start_envoy(run, tmp_path, "body", picker=[socket], servers=[server.address], change=allow)
            await ready(envoy, workers=1, servers=1)
            async with Client(envoy) as client:
                assert (await client.get("/v1/models")).status == 200
                assert (await client.post("/tokenize", b"{")).status == 200
                reply = await client.post("/v1/chat/completions", SMALL, {"x-llm-d-model-name-rewrite": "other"})
                assert (reply.status, server.served[-1].body) == (200, SMALL.replace(b'"m"', b'"other"'))
                assert server.served[-1].headers["x-gateway-destination-endpoint"] == "{}:{}".format(*server.address)
                assert (await client.post("/sse", SMALL)).body == b"".join(EVENTS)
                assert (await client.post("/v1/chat/completions", b"{")).status == 400, "the body was seen"
            assert envoy.stat("ext_proc.spurious_msgs_received") == 0
            assert envoy.stat("ext_proc.streams_failed") == 0

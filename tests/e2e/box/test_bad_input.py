"""Bad input through the whole chain (client, Envoy, picker, snapshot, agent, server) has defined answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import Processes
from support.waiting import eventually_async
from zerohop_console.demo.box import Box
from zerohop_console.demo.client import Client, Outcome, get, post
from zerohop_console.demo.watch import NodeWatch
from zerohop_console.snapshot import Source

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("box"), pytest.mark.timeout(120)]

GOOD = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}
LONG = b'{"model":"tiny","messages":[{"role":"user","content":"' + b"x" * 1_200_000 + b'"}]}'
NESTED = b'{"model":"tiny","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

BODIES = [
    ("not JSON", b"{nope", 400, "not valid JSON"),
    ("not an object", b"[1]", 400, "must be a JSON object"),
    ("null", b"null", 400, "must be a JSON object"),
    ("no model", b'{"messages":[]}', 400, "model not found"),
    ("a number for a model", b'{"model":5,"messages":[]}', 400, "model must be a string"),
    ("not UTF-8", b'{"model":"\xff\xfe"}', 400, "not valid JSON"),
    ("nested without end", NESTED, 400, "not valid JSON"),
    ("larger than the cap", LONG, 413, "larger than 1048576 bytes"),
    (
        "a model that no server has",
        b'{"model":"other","messages":[{"role":"user","content":"x"}]}',
        404,
        "does not exist",
    ),
]

# what the page of server "a" becomes -> the reason that the snapshot gives
PAGES = [
    ("empty", "not_metrics"),
    ("html", "not_metrics"),
    ("json", "not_metrics"),
    ("cut", "not_metrics"),
    ("huge", "too_large"),
    ("redirect", "http_status"),
    ("status", "http_status"),
    ("nothing_of_ours", "engine_unknown"),
    ("garbage", "not_metrics"),
    ("reset", "reset"),
    ("close", "reset"),
    ("hang", "timeout"),
]


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with Box() as made:
        await made.start_mock_servers(("a", "b"))
        await made.start_path(
            agent_flags=("--stale-after", "300ms"), picker_flags=("--max-request-bytes", "1MiB"), workers=1
        )
        watch = NodeWatch(made.shm_dir)
        await eventually_async(lambda: sum(seen.usable for seen in watch.endpoints().values()) == 2, 20)
        yield made


@pytest.fixture
def client(box: Box) -> Client:
    return Client("127.0.0.1", box.picked_port, keep_body=True)


async def test_each_bad_body_has_its_answer_and_no_client_can_steer(box: Box, client: Client) -> None:
    for name, body, status, message in BODIES:
        outcome = await client.send(post("/v1/chat/completions", body))
        assert (outcome.status, outcome.error) == (status, None), f"{name}: {outcome.complaint()}"
        error = json.loads(outcome.whole_body())["error"]
        assert message in error["message"], name
        assert b"xxxx" not in outcome.whole_body(), "an error never repeats the body"
    assert (await client.send(post("/v1/chat/completions", GOOD))).ok
    assert (await client.send(get("/v1/models"))).ok
    forged = {"x-gateway-destination-endpoint": str(box.servers[0].address)}
    served = {_server(await client.send(post("/v1/chat/completions", GOOD, forged))) for _ in range(30)}
    assert served == {"a", "b"}
    nowhere = {"x-gateway-destination-endpoint": "127.0.0.1:1"}
    assert (await client.send(post("/v1/chat/completions", GOOD, nowhere))).ok
    client.close()


async def test_a_broken_server_is_taken_out_and_the_other_serves_on(box: Box, client: Client) -> None:
    source = Source(box.shm_dir)

    def a() -> dict[str, Any]:
        view = source.look()
        assert view is not None
        return next(endpoint for endpoint in view["endpoints"] if endpoint["name"] == "a")

    async def taken_out_for(reason: str) -> None:
        await eventually_async(
            lambda: a()["reasons"]["unhealthy"] == reason and "stale" in a()["flags"],
            what=f"the snapshot says {reason}",
        )

    async def served() -> set[str]:
        return {_server(await client.send(post("/v1/chat/completions", GOOD))) for _ in range(6)}

    for fault, reason in PAGES:
        await box.admin(box.servers[0], page_fault=fault)
        await taken_out_for(reason)
        assert await served() == {"b"}, fault
    await box.admin(box.servers[0], page_fault="none")
    await eventually_async(lambda: a()["flags"] == [] and a()["reasons"]["unhealthy"] is None)
    # A page of NaN is unknown, not zero, and what is unknown does not win over a server that is known to be idle.
    await box.admin(box.servers[0], page_fault="nan")
    await eventually_async(lambda: a()["waiting"] is None)
    assert await served() == {"b"}
    await box.admin(box.servers[0], page_fault="none")
    await eventually_async(lambda: a()["waiting"] == 0)
    # It tells well and serves badly: Envoy goes on down the list of the pick.
    for fault in ("reset", "close", "garbage", "status"):
        await box.admin(box.servers[0], api_fault=fault, status=503)
        outcomes = await asyncio.gather(*(client.send(post("/v1/chat/completions", GOOD)) for _ in range(12)))
        assert {_server(outcome) for outcome in outcomes} == {"b"}, (fault, [o.complaint() for o in outcomes])
    client.close()


def test_the_path_of_another_agent_is_refused_in_words(run: Processes, tmp_path: Path) -> None:
    flags = ("--shm-dir", tmp_path, "--metrics-address", "off", "--gpu", "off", "--endpoint", "127.0.0.1:1")
    first = run.zerohop("agent", *flags)
    second = run.zerohop("agent", *flags, wait=False)
    assert second.wait() == 2
    assert second.log.splitlines()[-1].startswith("zerohop agent: error: ")
    assert str(tmp_path) in second.log
    assert "Traceback" not in second.log
    first.stop()


def _server(outcome: Outcome) -> str:
    return (outcome.headers or {}).get("x-mock-server", outcome.complaint())

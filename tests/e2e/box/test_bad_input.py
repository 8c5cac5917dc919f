"""Bad input through the whole chain (client, Envoy, picker, snapshot, agent, server) has defined answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

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


async def test_each_bad_body_has_its_answer(client: Client) -> None:
    for name, body, status, message in BODIES:
        outcome = await client.send(post("/v1/chat/completions", body))
        assert (outcome.status, outcome.error) == (status, None), f"{name}: {outcome.complaint()}"
        error = json.loads(outcome.whole_body())["error"]
        assert message in error["message"], name
        assert b"xxxx" not in outcome.whole_body(), "an error never repeats the body"
    assert (await client.send(post("/v1/chat/completions", GOOD))).ok
    assert (await client.send(get("/v1/models"))).ok
    client.close()


async def test_a_client_cannot_steer(box: Box, client: Client) -> None:
    forged = {"x-gateway-destination-endpoint": str(box.servers[0].address)}
    served = {_server(await client.send(post("/v1/chat/completions", GOOD, forged))) for _ in range(30)}
    assert served == {"a", "b"}
    elsewhere = await client.send(post("/v1/chat/completions", GOOD, {"x-gateway-destination-endpoint": "127.0.0.1:1"}))
    assert elsewhere.ok, elsewhere.complaint()
    client.close()


async def test_each_bad_page_takes_its_server_out_and_the_other_serves_on(box: Box, client: Client) -> None:
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

    for fault, reason in PAGES:
        await box.admin(box.servers[0], page_fault=fault)
        await taken_out_for(reason)
        outcomes = [await client.send(post("/v1/chat/completions", GOOD)) for _ in range(6)]
        assert {_server(outcome) for outcome in outcomes} == {"b"}, fault
    await box.admin(box.servers[0], page_fault="none")
    await eventually_async(lambda: a()["flags"] == [] and a()["reasons"]["unhealthy"] is None, 10)
    client.close()


async def test_a_page_of_nan_is_unknown_and_not_idle(box: Box, client: Client) -> None:
    source = Source(box.shm_dir)
    await box.admin(box.servers[0], page_fault="nan")

    def waiting() -> object:
        view = source.look()
        assert view is not None
        return next(endpoint for endpoint in view["endpoints"] if endpoint["name"] == "a")["waiting"]

    await eventually_async(lambda: waiting() is None, 10)
    # What is unknown must not win over a server that is known to be idle.
    outcomes = [await client.send(post("/v1/chat/completions", GOOD)) for _ in range(6)]
    assert {_server(outcome) for outcome in outcomes} == {"b"}
    client.close()


async def test_a_server_that_breaks_costs_no_request(box: Box, client: Client) -> None:
    for fault in ("reset", "close", "garbage", "status"):
        await box.admin(box.servers[0], api_fault=fault, status=503)
        outcomes = await asyncio.gather(*(client.send(post("/v1/chat/completions", GOOD)) for _ in range(12)))
        assert {_server(outcome) for outcome in outcomes} == {"b"}, (fault, [o.complaint() for o in outcomes])
    client.close()


async def test_the_path_of_another_agent_is_refused_in_words(box: Box) -> None:
    second = await box.start_agent()
    assert await second.ended() == 2
    assert "zerohop agent: error: " in second.tail()
    assert str(box.shm_dir) in second.tail()
    assert "Traceback" not in second.tail()


def _server(outcome: Outcome) -> str:
    return (outcome.headers or {}).get("x-mock-server", outcome.complaint())

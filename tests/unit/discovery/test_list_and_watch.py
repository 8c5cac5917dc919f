"""The list-and-watch loop against a real HTTP server, one kind of trouble per test."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from support.apiserver import ApiServer, Seen, pod, pool
from support.clocks import ManualClock
from support.waiting import eventually_async
from zerohop_agent.discovery.resources import PODS, POOLS_V1, POOLS_V1ALPHA2

Watching = Callable[..., Any]


def ready_server(**options: Any) -> ApiServer:
    server = ApiServer(**options)
    server.install(POOLS_V1)
    server.put(pool("llama"))
    server.put(pod("a", ip="10.1.0.1"))
    return server


def pod_watch(seen: Seen) -> bool:
    return seen.verb == "watch" and seen.path.endswith("/pods") and "sendInitialEvents" not in seen.params


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("aggregated", [True, False])
async def test_first_state_then_changes(watching: Watching, streaming: bool, aggregated: bool) -> None:
    async with ready_server(streaming_lists=streaming, aggregated=aggregated) as server, watching(server) as watched:
        await watched.becomes("10.1.0.1:8000")
        server.put(pod("b", ip="10.1.0.2"))
        await watched.becomes("10.1.0.1:8000", "10.1.0.2:8000")
        server.put(pod("a", ip="10.1.0.1", ready=False))
        await watched.becomes("10.1.0.2:8000")
        server.remove(pod("b"))
        await watched.becomes()
        assert server.count("list") == (0 if streaming else 2)


async def test_only_this_node(watching: Watching) -> None:
    async with ready_server() as server, watching(server) as watched:
        server.put(pod("far", ip="10.2.0.1", node="node-b"))
        server.put(pod("b", ip="10.1.0.2"))
        await watched.becomes("10.1.0.1:8000", "10.1.0.2:8000")
        server.put(pod("b", ip="10.1.0.2", node="node-b"))
        await watched.becomes("10.1.0.1:8000")
        # The server does the choosing: an agent is not sent what happens on other nodes.
        asked = [seen.params.get("fieldSelector") for seen in server.requests if seen.path.endswith("/pods")]
        assert set(asked) == {"spec.nodeName=node-a"}


@pytest.mark.parametrize("as_event", [True, False])
@pytest.mark.parametrize("streaming", [True, False])
async def test_expired_version_is_dropped_and_the_state_fetched_again(
    watching: Watching, as_event: bool, streaming: bool
) -> None:
    async with ready_server(streaming_lists=streaming) as server, watching(server) as watched:
        await watched.becomes("10.1.0.1:8000")
        await eventually_async(lambda: server.open_watches >= 2)
        server.muted = True
        server.put(pod("b", ip="10.1.0.2"))
        server.remove(pod("a"))
        server.expire(as_event=as_event)
        server.muted = False
        server.cut_watches()
        await watched.becomes("10.1.0.2:8000")


async def test_a_server_whose_every_version_is_expired_is_not_asked_in_a_hot_loop(watching: Watching) -> None:
    async with ready_server(streaming_lists=False) as server:
        server.fail(410, reason="Expired", times=10_000, matches=pod_watch)
        async with watching(server, backoff_first_s=30.0, backoff_most_s=30.0) as watched:
            await watched.becomes("10.1.0.1:8000")
            await eventually_async(lambda: server.count("list", PODS) >= 2)
            reflector = watched.discovery.sources.reflectors[(PODS, None)]
            await eventually_async(lambda: reflector.trouble is not None)
            assert server.count("list", PODS) == 2


async def test_other_error_events_keep_the_version(watching: Watching) -> None:
    async with ready_server(streaming_lists=False) as server, watching(server) as watched:
        await watched.becomes("10.1.0.1:8000")
        await eventually_async(lambda: server.open_watches >= 2)
        server.send_error(500, "InternalError")
        server.put(pod("b", ip="10.1.0.2"))
        await watched.becomes("10.1.0.1:8000", "10.1.0.2:8000")
        assert server.count("list", PODS) == 1


async def test_empty_answers_back_off_and_then_fetch_the_state(watching: Watching) -> None:
    async with ready_server(streaming_lists=False) as server:
        server.empty_watches = 12
        async with watching(server) as watched:
            await watched.becomes("10.1.0.1:8000")
            await eventually_async(lambda: server.empty_watches == 0)
            server.put(pod("b", ip="10.1.0.2"))
            await watched.becomes("10.1.0.1:8000", "10.1.0.2:8000")
            assert 2 <= server.count("list", PODS) <= 5


async def test_a_silent_connection_is_given_up(watching: Watching) -> None:
    async with ready_server() as server, watching(server, watch_timeout_s=1.0, watch_grace_s=0.2) as watched:
        await watched.becomes("10.1.0.1:8000")
        await eventually_async(lambda: server.open_watches >= 2)
        server.muted = True
        server.put(pod("b", ip="10.1.0.2"))
        await asyncio.sleep(0)
        muted = server.count("watch", PODS)
        await eventually_async(
            lambda: server.count("watch", PODS) > muted, what="a new watch although nothing was closed"
        )
        server.muted = False
        await watched.becomes("10.1.0.1:8000", "10.1.0.2:8000")


async def test_restart_of_the_server_loses_nothing(watching: Watching) -> None:
    async with ready_server() as server, watching(server) as watched:
        await watched.becomes("10.1.0.1:8000")
        await server.stop()
        server.put(pod("b", ip="10.1.0.2"))
        await server.start()
        await watched.becomes("10.1.0.1:8000", "10.1.0.2:8000")
        assert all(spec for spec in watched.sets[-1].endpoints)


async def test_a_cut_event_is_not_used(watching: Watching) -> None:
    async with ready_server() as server, watching(server) as watched:
        await watched.becomes("10.1.0.1:8000")
        await eventually_async(lambda: server.open_watches >= 2)
        server.cut_watches()
        server.put(pod("b", ip="10.1.0.2"))
        await watched.becomes("10.1.0.1:8000", "10.1.0.2:8000")


async def test_a_refused_token_keeps_what_was_known(watching: Watching) -> None:
    async with ready_server() as server:
        server.token = "first"
        async with watching(server, token="first") as watched:
            await watched.becomes("10.1.0.1:8000")
            server.token = "second"
            server.cut_watches()
            reflector = watched.discovery.sources.reflectors[(PODS, None)]
            await eventually_async(lambda: reflector.trouble and "401" in reflector.trouble)
            assert set(watched.now) == {"10.1.0.1:8000"}


async def test_nothing_is_said_before_pools_are_known(watching: Watching) -> None:
    """A restarted agent still has its endpoints; an empty set in between would take them away."""
    async with ready_server() as server:
        server.fail(500, times=5, matches=lambda seen: seen.verb == "discovery")
        server.fail(500, times=5, matches=lambda seen: "inferencepools" in seen.path)
        async with watching(server) as watched:
            await watched.becomes("10.1.0.1:8000")
            assert len(watched.sets) == 1


async def test_too_many_requests_waits_as_long_as_asked(watching: Watching) -> None:
    clock = ManualClock()
    async with ready_server(streaming_lists=False) as server:
        headers = {"Retry-After": "100"}
        server.fail(
            429, reason="TooManyRequests", headers=headers, matches=lambda s: s.verb == "list" and "/pods" in s.path
        )
        async with watching(server, clock=clock, api_discovery_interval_s=60.0, status_idle_s=60.0) as watched:

            async def refused() -> bool:
                await clock.advance(0.01)
                reflector = watched.discovery.sources.reflectors.get((PODS, None))
                return reflector is not None and reflector.trouble is not None and "429" in reflector.trouble

            await eventually_async(refused)
            for _ in range(98):
                await clock.advance(1.0)
                await asyncio.sleep(0)
            assert server.count("list", PODS) == 1
            await clock.advance(4.0)
            await eventually_async(lambda: server.count("list", PODS) == 2)


async def test_missing_permission_is_one_clear_sentence(watching: Watching, caplog: pytest.LogCaptureFixture) -> None:
    async with ready_server() as server:
        server.forbid("watch", "pods")
        with caplog.at_level(logging.INFO, logger="zerohop"):
            async with watching(server) as watched:
                reflector = await eventually_async(lambda: watched.discovery.sources.reflectors.get((PODS, None)))
                sentence = await eventually_async(lambda: reflector.trouble)
                await eventually_async(lambda: reflector.denied)
        assert "get, list and watch on 'pods'" in sentence
        assert "in all namespaces" in sentence
        assert "ClusterRole" in sentence
        assert [record.getMessage() for record in caplog.records].count(sentence) == 1
        # Nothing at all could be read: what an earlier agent knew must stay.
        assert not watched.sets


async def test_a_pool_group_that_may_not_be_read_keeps_nothing_away(watching: Watching) -> None:
    """The Role of a picker that is replaced names one API group; the cluster may have both."""
    async with ready_server() as server:
        server.install(POOLS_V1ALPHA2)
        server.forbid("watch", "inferencepools", group=POOLS_V1ALPHA2.group)
        async with watching(server) as watched:
            await watched.becomes("10.1.0.1:8000")
            assert watched.discovery.sources.states()[str(POOLS_V1ALPHA2)].trouble


async def test_a_namespace_that_may_not_be_read_keeps_nothing_away(watching: Watching) -> None:
    async with ready_server() as server:
        server.put(pool("llama", namespace="closed"))
        server.put(pod("c", ip="10.1.0.9", namespace="closed"))
        server.forbid("watch", "pods", namespace="closed")
        async with watching(server, namespaces=("closed", "default")) as watched:
            await watched.becomes("10.1.0.1:8000")
            assert watched.discovery.sources.reflectors[(PODS, "closed")].denied


async def test_one_refusal_may_be_a_server_that_starts(watching: Watching) -> None:
    """An empty set would clear what a restarted agent still has, so a first 403 is not believed."""
    async with ready_server() as server:
        server.put(pod("c", ip="10.1.0.9", namespace="late"))
        server.put(pool("llama", namespace="late"))
        server.fail(403, matches=lambda seen: "/namespaces/late/pods" in seen.path)
        async with watching(server, namespaces=("late", "default")) as watched:
            await watched.becomes("10.1.0.1:8000", "10.1.0.9:8000")
            assert len(watched.sets) == 1


async def test_pages_of_a_long_list(watching: Watching) -> None:
    async with ready_server(streaming_lists=False) as server:
        for index in range(1201):
            server.put(pod(f"p{index}", ip=f"10.{index // 250 + 2}.0.{index % 250 + 1}"))
        server.fail(500, matches=lambda seen: seen.verb == "list" and "/pods" in seen.path)
        async with watching(server) as watched:
            await eventually_async(lambda: len(watched.now) == 1202, 10)
            assert server.count("list", PODS) == 4


async def test_a_periodic_list_repairs_what_a_watch_missed(watching: Watching) -> None:
    async with ready_server() as server, watching(server, relist_interval_s=0.2, watch_timeout_s=1.0) as watched:
        await watched.becomes("10.1.0.1:8000")
        server.put(pod("b", ip="10.1.0.2"))
        server.changes.clear()
        await watched.becomes("10.1.0.1:8000", "10.1.0.2:8000")

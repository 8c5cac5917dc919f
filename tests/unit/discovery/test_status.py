"""InferenceModels: what is said about each, by one agent of many, and never in a hot loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from support.apiserver import LEASES, ApiServer, custom, pod, pool
from support.clocks import ManualClock
from support.waiting import eventually_async
from zerohop_agent.discovery.client import ApiClient, load_config
from zerohop_agent.discovery.lease import Lease
from zerohop_agent.discovery.resources import CUSTOM, POOLS_V1
from zerohop_agent.discovery.verdicts import ACCEPTED, Verdict, conditions_with

Watching = Callable[..., Any]
MODELS, MODELS_ALPHA1 = CUSTOM[6:]
OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def model(
    name: str, model_name: str = "m", pool_name: str = "llama", resource: Any = MODELS, **fields: Any
) -> dict[str, Any]:
    created = fields.pop("created", OLD)
    spec = {"modelName": model_name, "poolRef": {"name": pool_name}, **fields}
    return custom(resource, name, spec, created=created)


def accepted(server: ApiServer, name: str, resource: Any = MODELS) -> dict[str, Any]:
    conditions = server.get(resource, name).get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == "Accepted"), {})


async def cluster(*models: dict[str, Any], resource: Any = MODELS) -> ApiServer:
    server = ApiServer()
    server.install(POOLS_V1, resource)
    server.put(pool("llama"))
    server.put(pod("a", ip="10.1.0.1"))
    for each in models:
        server.put(each)
    return server


async def test_each_object_is_told_what_is_so(watching: Watching, shared_data: Path) -> None:
    """models-as-a-service#737: of two objects with one model name the older keeps it, whatever the order."""
    server = await cluster(
        model("older"),
        model("younger", created=NEW),
        model("lost", "n", pool_name="nowhere"),
        model("fine", "o", targetModels=[{"name": "a", "weight": 1}, {"name": "b", "weight": 9}]),
        model("half", "p", targetModels=[{"name": "a", "weight": 1}, {"name": "b"}]),
    )
    async with server, watching(server) as watched:
        await watched.becomes("10.1.0.1:8000")
        await eventually_async(lambda: all(accepted(server, n) for n in ("older", "younger", "lost", "fine", "half")))
        said = {name: accepted(server, name)["reason"] for name in ("older", "younger", "lost", "fine", "half")}
        assert said == {
            "older": "Accepted",
            "younger": "ModelNameInUse",
            "lost": "PoolNotFound",
            "fine": "Accepted",
            "half": "Invalid",
        }
        assert "default/older" in accepted(server, "younger")["message"]
        crd = yaml.safe_load(
            (shared_data / "crds" / "v0.5.1_inference.networking.x-k8s.io_inferencemodels.yaml").read_text()
        )
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        jsonschema.validate(server.get(MODELS, "younger"), schema)
        # The pickers see the oldest and the reserved ones, not those that are refused.
        (served,) = watched.sets[-1].pools
        assert [entry["name"] for entry in served.models] == ["fine", "older"]


async def test_zero_weights_reserve_a_name(watching: Watching) -> None:
    reserved = model("reserved", "r", resource=MODELS_ALPHA1, targetModels=[{"name": "a", "weight": 0}])
    server = await cluster(reserved, resource=MODELS_ALPHA1)
    async with server, watching(server) as watched:
        await watched.becomes("10.1.0.1:8000")
        condition = await eventually_async(lambda: accepted(server, "reserved", MODELS_ALPHA1))
        assert (condition["status"], condition["reason"]) == ("False", "NoValidTarget")
        assert [entry["name"] for entry in watched.sets[-1].pools[0].models] == ["reserved"]


async def test_the_younger_takes_over_when_the_older_goes(watching: Watching) -> None:
    server = await cluster(model("older"), model("younger", created=NEW))
    clock = ManualClock()
    async with server, watching(server, clock=clock, status_idle_s=1.0) as watched:

        async def step(predicate: Callable[[], Any]) -> bool:
            await clock.advance(0.3)
            return bool(predicate())

        await eventually_async(lambda: step(lambda: accepted(server, "younger").get("reason") == "ModelNameInUse"))
        server.remove(server.get(MODELS, "older"))
        await eventually_async(lambda: step(lambda: accepted(server, "younger").get("reason") == "Accepted"))
        assert [entry["name"] for entry in watched.sets[-1].pools[0].models] == ["younger"]


async def test_conflicts_are_tried_again_and_writes_stop(watching: Watching) -> None:
    server = await cluster(model("older"))
    clock = ManualClock()
    server.fail(409, reason="Conflict", times=2, matches=lambda seen: seen.verb == "update" and "/status" in seen.path)
    async with server, watching(server, clock=clock, status_idle_s=1.0) as watched:

        async def written() -> bool:
            await clock.advance(0.1)
            return bool(accepted(server, "older"))

        await eventually_async(written)
        writer = watched.discovery.status_writer
        await eventually_async(lambda: (writer.writes, writer.conflicts) == (1, 2))
        # What was written has come back; from then on there is nothing to ask about this object.
        await eventually_async(lambda: bool(next(iter(watched.discovery._wanted_statuses()))[0].conditions))
        requests = sum("/inferencemodels/older" in seen.path for seen in server.requests)
        for _ in range(120):
            await clock.advance(1.0)
            for _ in range(5):
                await asyncio.sleep(0)
        assert requests == sum("/inferencemodels/older" in seen.path for seen in server.requests)


@pytest.mark.parametrize(("verb", "plural"), [("get", "leases"), ("update", "inferencemodels"), ("create", "leases")])
async def test_everything_else_works_without_permission_to_write(watching: Watching, verb: str, plural: str) -> None:
    server = await cluster(model("older"))
    server.forbid(verb, plural)
    async with server, watching(server) as watched:
        await watched.becomes("10.1.0.1:8000")
        await eventually_async(lambda: any(seen.verb == verb and plural in seen.path for seen in server.requests))
        server.put(pod("b", ip="10.1.0.2"))
        await watched.becomes("10.1.0.1:8000", "10.1.0.2:8000")
        assert not accepted(server, "older")
        assert sum(seen.verb == verb and plural in seen.path for seen in server.requests) == 1


async def test_without_models_nobody_asks_for_the_lease(watching: Watching) -> None:
    server = await cluster()
    async with server, watching(server) as watched:
        await watched.becomes("10.1.0.1:8000")
        server.put(pod("b", ip="10.1.0.2"))
        await watched.becomes("10.1.0.1:8000", "10.1.0.2:8000")
        assert not any("leases" in seen.path for seen in server.requests)


async def test_one_of_many_holds_the_lease(tmp_path: Path) -> None:
    clock = ManualClock()
    async with ApiServer() as server, AsyncExitStack() as stack:
        client = ApiClient(load_config(server.kubeconfig(tmp_path)))
        stack.push_async_callback(client.close)
        leases = [Lease(client, clock, "zerohop", "zerohop-status", f"agent-{index}") for index in range(5)]
        assert [await lease.attend() for lease in leases] == [True, False, False, False, False]
        await clock.advance(10)
        assert await leases[0].attend()
        assert not await leases[1].attend()
        # The holder is gone: nobody takes over before having watched the lease stand still for its duration.
        await clock.advance(14)
        assert not await leases[1].attend()
        await clock.advance(14.9)
        assert not leases[0].valid
        assert [await lease.attend() for lease in leases[1:]] == [True, False, False, False]
        assert not await leases[0].attend()
        spec = server.get(LEASES, "zerohop-status", "zerohop")["spec"]
        assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("agent-1", 1)
        await leases[1].release()
        assert await leases[2].attend()


def test_conditions_of_others_stay() -> None:
    ready = {"type": "Ready", "status": "Unknown", "reason": "Pending", "message": "", "lastTransitionTime": OLD}
    first = conditions_with([ready], ACCEPTED, 1, NEW)
    assert first is not None
    assert first[0] == ready
    assert first[1]["lastTransitionTime"] == NEW
    assert conditions_with(first, ACCEPTED, 1, "later") is None
    again = conditions_with(first, ACCEPTED, 2, "later")
    assert again is not None
    assert (again[1]["observedGeneration"], again[1]["lastTransitionTime"]) == (2, NEW)
    turned = conditions_with(first, Verdict("False", "PoolNotFound", "x"), 1, "later")
    assert turned is not None
    assert turned[1]["lastTransitionTime"] == "later"

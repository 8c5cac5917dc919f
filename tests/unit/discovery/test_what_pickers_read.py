"""Objects of the API server, as a picker's own code reads them: through discovery, and msgpack as in the snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgpack

from support.apiserver import ApiServer, custom, pod, pool
from zerohop_agent.discovery.resources import CUSTOM, POOLS_V1
from zerohop_agent.endpoints import PoolSpec
from zerohop_picker.models.catalog import Catalog
from zerohop_picker.models.resources import pool_resources

OBJECTIVES, X_OBJECTIVES, REWRITES, X_REWRITES, MODELS, MODELS_ALPHA1 = CUSTOM[2:]
REF = {"poolRef": {"name": "llama"}}


def catalog(spec: PoolSpec) -> Catalog:
    """The picker's view of a pool."""
    entry = {
        "name": spec.name,
        "objectives": [dict(each) for each in spec.objectives],
        "rewrites": [dict(each) for each in spec.rewrites],
        "models": [dict(each) for each in spec.models],
    }
    return Catalog([pool_resources(msgpack.unpackb(msgpack.packb(entry)))], spec.name)


async def test_weighted_targets_split_exactly_over_ten_thousand_requests(watching: Callable[..., Any]) -> None:
    async with ApiServer() as server:
        server.install(POOLS_V1, MODELS_ALPHA1)
        server.put(pool("llama"))
        server.put(pod("a", ip="10.1.0.1"))
        targets = [{"name": f"m-{weight}", "weight": weight} for weight in (1, 24, 75, 0)]
        server.put(custom(MODELS_ALPHA1, "split", {**REF, "modelName": "m", "targetModels": targets}))
        reserved = [{"name": "x", "weight": 0}]
        server.put(custom(MODELS_ALPHA1, "reserved", {**REF, "modelName": "r", "targetModels": reserved}))
        younger = {**REF, "modelName": "m", "targetModels": [{"name": "wrong"}]}
        server.put(custom(MODELS_ALPHA1, "younger", younger, created="2026-06-01T00:00:00Z"))
        async with watching(server) as watched:
            await watched.becomes("10.1.0.1:8000")
            names = catalog(watched.sets[-1].pools[0])
            drawn = Counter(names.resolve("m", None, None).model for _ in range(10_000))
            assert drawn == {"m-1": 100, "m-24": 2400, "m-75": 7500}
            assert names.resolve("r", None, None).reserved
            assert names.resolve("unknown", None, None).model is None


async def test_objectives_and_rewrites_of_either_group(watching: Callable[..., Any]) -> None:
    for objectives, rewrites in ((OBJECTIVES, REWRITES), (X_OBJECTIVES, X_REWRITES)):
        async with ApiServer() as server:
            server.install(POOLS_V1, objectives, rewrites)
            server.put(pool("llama"))
            server.put(pod("a", ip="10.1.0.1"))
            server.put(custom(objectives, "batch", {**REF, "priority": -5}))
            server.put(custom(objectives, "elsewhere", {"poolRef": {"name": "other"}, "priority": 9}))
            rules = [{"matches": [{"model": {"value": "m"}}], "targets": [{"modelRewrite": "m-v2"}]}]
            server.put(custom(rewrites, "canary", {**REF, "rules": rules}))
            async with watching(server) as watched:
                await watched.becomes("10.1.0.1:8000")
                names = catalog(watched.sets[-1].pools[0])
                assert names.resolve("m", None, None).model == "m-v2"
                assert names.resolve("m", None, "batch").priority == -5
                assert names.resolve("m", None, "elsewhere").priority == 0


async def test_where_both_groups_are_installed_the_newer_counts(watching: Callable[..., Any]) -> None:
    async with ApiServer() as server:
        server.install(POOLS_V1, OBJECTIVES, X_OBJECTIVES)
        server.put(pool("llama"))
        server.put(pod("a", ip="10.1.0.1"))
        server.put(custom(OBJECTIVES, "batch", {**REF, "priority": 1}))
        server.put(custom(X_OBJECTIVES, "batch", {**REF, "priority": 2}))
        async with watching(server) as watched:
            await watched.becomes("10.1.0.1:8000")
            assert [entry["priority"] for entry in watched.sets[-1].pools[0].objectives] == [1]
            # The newer CRD goes: the older one's objects are read then.
            server.uninstall(OBJECTIVES)
            await watched_priority(watched, 2)


async def watched_priority(watched: Any, priority: int) -> None:
    from support.waiting import eventually_async

    await eventually_async(
        lambda: [entry["priority"] for entry in watched.sets[-1].pools[0].objectives] == [priority], 10
    )

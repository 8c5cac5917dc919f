"""Which pods are endpoints: the rules, one row each."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from support import apiserver
from zerohop_agent.discovery import candidates
from zerohop_agent.discovery.candidates import Pool
from zerohop_agent.discovery.customs import decoder
from zerohop_agent.discovery.pods import Pod, pod_from_json
from zerohop_agent.discovery.resources import POOLS_V1, POOLS_V1ALPHA2
from zerohop_agent.discovery.settings import DiscoverySettings
from zerohop_agent.endpoints import EndpointSpec

SETTINGS = DiscoverySettings(source="api", node_name="node-a")


def made(name: str = "a", **fields: Any) -> Pod:
    pod = pod_from_json(apiserver.pod(name, **fields))
    assert pod is not None
    return pod


def pool(name: str = "llama", *ports: int, labels: dict[str, str] | None = None) -> Pool:
    return Pool("default", name, labels or {"app": "vllm"}, ports or (8000,))


def endpoints(*pods: Pod, pools: list[Pool] | None = None, **settings: Any) -> list[EndpointSpec]:
    return candidates.endpoints_of(pods, pools or [pool()], dataclasses.replace(SETTINGS, **settings))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["10.1.0.1:8000"]),
        ({"ready": False}, []),
        ({"ip": None}, []),
        ({"phase": "Succeeded"}, []),
        ({"phase": "Failed"}, []),
        ({"labels": {"app": "web"}}, []),
        ({"namespace": "other"}, []),
        ({"node": "node-b"}, []),
        ({"ip": "fd00::5"}, ["[fd00::5]:8000"]),
        ({"ip": "not an address"}, []),
        ({"annotations": {"llm-d.ai/active-ports": "8001"}}, []),
        ({"annotations": {"llm-d.ai/active-ports": "8000, 8001"}}, ["10.1.0.1:8000"]),
        ({"annotations": {"inference.networking.k8s.io/active-ports": "8001"}}, []),
        ({"annotations": {"llm-d.ai/active-ports": ""}}, []),
        ({"annotations": {"llm-d.ai/active-ports": "all,8000"}}, ["10.1.0.1:8000"]),
    ],
)
def test_one_pod(fields: dict[str, Any], expected: list[str]) -> None:
    assert [str(spec.address) for spec in endpoints(made(**fields))] == expected


def test_terminating_pods_drain_and_are_not_dropped_while_they_serve() -> None:
    (spec,) = endpoints(made(deleting=True))
    assert spec.draining
    assert spec.drain_reason.name == "POD_TERMINATING"
    assert not endpoints(made(deleting=True, ready=False))


@pytest.mark.parametrize(
    ("family", "expected"), [("primary", "10.1.0.1:8000"), ("ipv4", "10.1.0.1:8000"), ("ipv6", "[fd00::1]:8000")]
)
def test_dual_stack(family: str, expected: str) -> None:
    (spec,) = endpoints(made(ips=("10.1.0.1", "fd00::1")), ip_family=family)
    assert str(spec.address) == expected


def test_each_port_of_each_pool_is_one_endpoint_of_all_its_pools() -> None:
    """GIE#1336: a pod's name is no unique key of an endpoint."""
    specs = endpoints(made(), pools=[pool("one", 8000, 8001), pool("two", 8001, 8002)])
    assert {spec.key: spec.pools for spec in specs} == {
        "uid-default-a/8000": ("default/one",),
        "uid-default-a/8001": ("default/one", "default/two"),
        "uid-default-a/8002": ("default/two",),
    }
    assert [spec.name for spec in specs] == ["default/a-rank-0", "default/a-rank-1", "default/a-rank-1"]


def test_of_two_pods_at_one_address_the_younger_has_it() -> None:
    old, new = made("old", created="2026-01-01T00:00:00Z"), made("new", created="2026-01-01T00:00:01Z")
    for order in ((old, new), (new, old)):
        (spec,) = endpoints(*order)
        assert spec.uid == "uid-default-new"
    terminating = made("young", created="2026-01-01T00:00:02Z", deleting=True)
    (spec,) = endpoints(new, terminating)
    assert not spec.draining


def test_scope_pool_marks_and_slows_what_is_on_other_nodes() -> None:
    here, there = endpoints(made("a"), made("b", node="node-b", ip="10.2.0.1"), scope="pool")
    assert (here.origin, here.scrape_interval_ns) == ("", None)
    assert (there.origin, there.scrape_interval_ns) == ("node-b", 500_000_000)


def test_labels_name_engine_and_role() -> None:
    labels = {"app": "vllm", "llm-d.ai/engine-type": "SGLang", "llm-d.ai/role": "decode"}
    (spec,) = endpoints(made(labels=labels))
    assert (spec.engine, spec.role) == ("sglang", "decode")
    (spec,) = endpoints(made(labels={"app": "vllm", "inference.networking.k8s.io/engine-type": "vllm"}))
    assert spec.engine == "vllm"


def test_one_name_in_both_groups_is_the_newer_ones() -> None:
    newer = decoder(POOLS_V1)(apiserver.pool("llama", ports=(8000, 8001)))
    spec = {"selector": {"app": "old"}, "targetPortNumber": 9000, "extensionRef": {"name": "epp"}}
    older = decoder(POOLS_V1ALPHA2)(apiserver.custom(POOLS_V1ALPHA2, "llama", spec))
    alone = decoder(POOLS_V1ALPHA2)(apiserver.custom(POOLS_V1ALPHA2, "alone", spec))
    assert newer is not None
    assert older is not None
    assert alone is not None
    for order in ([newer, older, alone], [older, alone, newer]):
        pools, complaints = candidates.pools_of(order, SETTINGS)
        assert [(pool.name, pool.target_ports) for pool in pools] == [("alone", (9000,)), ("llama", (8000, 8001))]
        assert len(complaints) == 1


def test_more_pools_than_the_snapshot_has_bits_for_are_refused_by_name() -> None:
    many = [decoder(POOLS_V1)(apiserver.pool(f"p{index:03}")) for index in range(66)]
    pools, complaints = candidates.pools_of([each for each in many if each is not None], SETTINGS)
    assert len(pools) == 64
    assert "default/p064" in complaints[0]
    assert "default/p065" in complaints[0]


@pytest.mark.parametrize(
    "body", [{}, {"metadata": None}, {"metadata": {"uid": 5, "name": "a"}}, {"metadata": {"uid": "u", "name": ""}}]
)
def test_what_is_no_pod_is_left_out(body: dict[str, Any]) -> None:
    assert pod_from_json(body) is None


def test_odd_pods_are_read_as_far_as_they_go() -> None:
    pod = pod_from_json(
        {
            "metadata": {"uid": "u", "name": "a", "labels": ["x"], "creationTimestamp": 7},
            "spec": 1,
            "status": {"podIPs": 3},
        }
    )
    assert pod is not None
    assert (pod.ips, pod.ready, pod.created, dict(pod.labels)) == ((), False, 0.0, {})

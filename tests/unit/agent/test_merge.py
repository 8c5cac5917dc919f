from __future__ import annotations

from dataclasses import replace

from zerohop_agent.endpoints import EndpointSet, EndpointSpec, PoolSpec
from zerohop_agent.merge import merge
from zerohop_process.address import Address


def spec(address: str, **values: object) -> EndpointSpec:
    where = Address.parse(address)
    return replace(EndpointSpec(key=address, address=where, name=address), **values)  # type: ignore[arg-type]


def test_the_file_goes_before_the_flags_and_both_before_discovery() -> None:
    sets = {
        "kubernetes": EndpointSet((spec("10.0.0.1:1", key="pod-1", name="pod"), spec("10.0.0.2:1", name="found"))),
        "flags": EndpointSet((spec("10.0.0.1:1", name="flag"), spec("10.0.0.3:1"))),
        "file": EndpointSet((spec("10.0.0.1:1", name="file"),)),
    }
    merged = merge(sets)
    assert {str(one.address): one.name for one in merged.endpoints.values()} == {
        "10.0.0.1:1": "file",
        "10.0.0.2:1": "found",
        "10.0.0.3:1": "10.0.0.3:1",
    }
    assert ("10.0.0.1:1", "pod") in merged.left_out


def test_the_order_in_which_sources_speak_does_not_matter() -> None:
    one, two = EndpointSet((spec("10.0.0.1:1", name="a"),)), EndpointSet((spec("10.0.0.1:1", key="x", name="b"),))
    assert merge({"x": one, "y": two}).endpoints == merge({"y": two, "x": one}).endpoints


def test_a_new_pod_takes_the_address_of_one_that_terminates() -> None:
    old = spec("10.0.0.1:1", key="old", draining=True)
    new = spec("10.0.0.1:1", key="new")
    for order in ((old, new), (new, old)):
        merged = merge({"kubernetes": EndpointSet(order)})
        assert list(merged.endpoints) == ["new"]


def test_one_key_stands_once() -> None:
    merged = merge({"kubernetes": EndpointSet((spec("10.0.0.1:1", key="k"), spec("10.0.0.2:1", key="k")))})
    assert [str(one.address) for one in merged.endpoints.values()] == ["10.0.0.1:1"]


def test_pools_that_only_endpoints_name_exist_too() -> None:
    sets = {"file": EndpointSet((spec("10.0.0.1:1", pools=("ns/a", "ns/b")),), (PoolSpec("ns/b", "h2c"),))}
    pools = {pool.name: pool.app_protocol for pool in merge(sets).pools}
    assert pools == {"ns/b": "h2c", "ns/a": "http"}


def test_endpoints_speak_what_their_pool_says_unless_they_say_it_themselves() -> None:
    pools = (PoolSpec("a", engine="vllm", protocol_version="1"), PoolSpec("b", engine="sglang"))
    named = spec("10.0.0.1:1", pools=("b", "a"))
    own = spec("10.0.0.2:1", pools=("a",), engine="tgi", protocol_version="2")
    other = spec("10.0.0.3:1")
    found = merge({"file": EndpointSet((named, own), pools), "kubernetes": EndpointSet((other,))}).endpoints
    assert {key: (one.engine, one.protocol_version) for key, one in found.items()} == {
        "10.0.0.1:1": ("sglang", "1"),
        "10.0.0.2:1": ("tgi", "2"),
        "10.0.0.3:1": (None, None),
    }

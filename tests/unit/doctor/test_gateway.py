"""Configuration dumps of a real Envoy, right and wrong ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import istio
from support.envoys import RunningEnvoy
from support.manifests import of_kind, rendered
from support.processes import Processes, processes
from zerohop_console.demo.envoy import EnvoyPlan, bootstrap
from zerohop_console.doctor import gateway, gateway_rules
from zerohop_console.doctor.finding import Finding, Level
from zerohop_process.address import Address

pytestmark = pytest.mark.xdist_group("doctor-envoy")
ENDPOINTS = [Address("127.0.0.1", 1), Address("127.0.0.1", 2)]
Body = dict[str, Any]


def dump_of(run: Processes, body: Body, directory: Path) -> Any:
    envoy = RunningEnvoy(run, body, directory)
    try:
        return json.loads(envoy.get("/config_dump"))
    finally:
        envoy.process.end()


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a real Envoy says of itself: as the demo and as Istio configure it, the latter with our EnvoyFilter too."""
    plain = istio.bootstrap(Address("127.0.0.1", 3), ENDPOINTS)
    routes = plain["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]
    del routes["virtual_hosts"][0]["routes"][0]
    (body,) = [
        each
        for each in of_kind(rendered("overlays/istio-uds"), "EnvoyFilter")
        if each["metadata"]["name"] == "zerohop-gateway"
    ]
    made = {
        "demo": bootstrap(EnvoyPlan([Path("/tmp/none.sock")], ENDPOINTS, "FULL_DUPLEX_STREAMED")),
        "istio": plain,
        "istio-uds": istio.with_envoy_filter(plain, body, "GATEWAY", Path("/tmp/none.sock")),
    }
    with processes() as run:
        return {name: dump_of(run, each, tmp_path_factory.mktemp(name)) for name, each in made.items()}


def found(dump: Any, *levels: Level) -> list[Finding]:
    return [
        finding for finding in gateway_rules.check_dump(dump) if finding.level in (levels or (Level.WARN, Level.FAIL))
    ]


def test_what_we_ship_has_nothing_to_complain_of(dumps: dict[str, Any]) -> None:
    assert found(dumps["demo"]) == []
    assert found(dumps["istio-uds"]) == []
    assert len(found(dumps["demo"], Level.OK)) >= 2


def test_istio_alone_is_fine_but_for_what_a_static_picker_cluster_lacks(dumps: dict[str, Any]) -> None:
    (finding,) = found(dumps["istio"])
    assert "no health check" in finding.message
    assert finding.fix


def everything(body: Any) -> Any:
    """Every object of a dump, for a test to change."""
    if isinstance(body, dict):
        yield body
        for value in body.values():
            yield from everything(value)
    elif isinstance(body, list):
        for value in body:
            yield from everything(value)


def filters(dump: Any) -> list[Body]:
    return [each for each in everything(dump) if str(each.get("@type", "")).endswith("ext_proc.v3.ExternalProcessor")]


def clusters(dump: Any, name: str) -> list[Body]:
    return [each for each in everything(dump) if each.get("name") == name and "load_assignment" in each]


def no_filter(dump: Any) -> None:
    for each in filters(dump):
        each["processing_mode"] = {"request_header_mode": "SKIP", "response_header_mode": "SKIP"}


def no_metadata(dump: Any) -> None:
    for each in filters(dump):
        del each["metadata_options"]


def no_health_check(dump: Any) -> None:
    for each in clusters(dump, "picker"):
        each.pop("health_checks", None)


def panic(dump: Any) -> None:
    for each in clusters(dump, "picker"):
        each.pop("common_lb_config", None)


def few_requests(dump: Any) -> None:
    for each in clusters(dump, "picker"):
        each.pop("circuit_breakers", None)


def no_trailers(dump: Any) -> None:
    for each in filters(dump):
        each["processing_mode"]["request_trailer_mode"] = "SKIP"


def no_bodies(dump: Any) -> None:
    for each in filters(dump):
        each["processing_mode"] |= {"request_body_mode": "NONE"}


def forbidden_by_expression(dump: Any) -> None:
    for each in filters(dump):
        each["mutation_rules"] = {"disallow_expression": {"regex": "x-gateway-.*"}}


def short_timeout(dump: Any) -> None:
    for each in filters(dump):
        each["processing_mode"]["request_body_mode"] = "BUFFERED"
        each["message_timeout"] = "0.020s"


def header_source(dump: Any) -> None:
    for each in everything(dump):
        if "override_host_sources" in each:
            each["override_host_sources"] = [{"header": gateway_rules.DESTINATION}]
        if str(each.get("@type", "")).endswith("header_mutation.v3.HeaderMutation"):
            each["mutations"] = {}


def no_override(dump: Any) -> None:
    for each in everything(dump):
        each.pop("load_balancing_policy", None)


def original_dst(dump: Any) -> None:
    for each in clusters(dump, "picked_servers"):
        each.pop("load_balancing_policy", None)
        each |= {"type": "ORIGINAL_DST", "original_dst_lb_config": {"use_http_header": True}}


def no_retry(dump: Any) -> None:
    for each in everything(dump):
        each.pop("retry_policy", None)


def no_cluster(dump: Any) -> None:
    for each in clusters(dump, "picker"):
        each["name"] = "other"


def http1(dump: Any) -> None:
    for each in clusters(dump, "picker"):
        each.pop("typed_extension_protocol_options", None)


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        (no_filter, Level.FAIL, "no ext_proc filter"),
        (no_metadata, Level.FAIL, "dynamic metadata is not accepted"),
        (no_health_check, Level.FAIL, "no health check"),
        (panic, Level.FAIL, "healthy_panic_threshold"),
        (few_requests, Level.WARN, "max_requests is 1024"),
        (no_trailers, Level.FAIL, "without trailers"),
        (no_bodies, Level.WARN, "sees no bodies"),
        (forbidden_by_expression, Level.FAIL, "mutation_rules forbid"),
        (short_timeout, Level.WARN, "message_timeout 20 ms"),
        (header_source, Level.FAIL, "clients can send that header"),
        (no_override, Level.FAIL, "no cluster takes its host"),
        (original_dst, Level.FAIL, "one address only"),
        (no_retry, Level.WARN, "no retry"),
        (no_cluster, Level.FAIL, "does not exist"),
        (http1, Level.FAIL, "does not speak HTTP/2"),
    ],
)
def test_each_mistake_is_found(dumps: dict[str, Any], change: Callable[[Any], None], level: Level, words: str) -> None:
    dump = copy.deepcopy(dumps["demo"])
    change(dump)
    matching = [finding for finding in found(dump) if words in finding.message]
    assert matching, found(dump)
    assert {finding.level for finding in matching} == {level}
    assert all(finding.fix for finding in matching)


def test_an_expression_that_names_other_headers_is_no_mistake(dumps: dict[str, Any]) -> None:
    dump = copy.deepcopy(dumps["demo"])
    for each in filters(dump):
        each["mutation_rules"] = {"disallow_expression": {"regex": "x-gateway"}}
    assert not [finding for finding in found(dump) if "mutation_rules" in finding.message]


def test_an_override_that_cors_displaced(dumps: dict[str, Any]) -> None:
    dump = copy.deepcopy(dumps["istio"])
    for each in everything(dump):
        if "typed_per_filter_config" in each:
            kind = "type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy"
            each["typed_per_filter_config"] = {"envoy.filters.http.cors": {"@type": kind}}
    messages = [finding.message for finding in found(dump)]
    assert any("no ext_proc filter" in message or "displaced the picker's override" in message for message in messages)


def test_an_unreadable_dump_is_a_finding(tmp_path: Path) -> None:
    broken = tmp_path / "dump.json"
    broken.write_text("{")
    (finding,) = gateway.check(None, broken)
    assert finding.level is Level.FAIL
    for odd in (None, 3, "x", {"configs": [{"@type": "x.ClustersConfigDump", "static_clusters": [{"cluster": None}]}]}):
        broken.write_text(json.dumps(odd))
        assert [each.level for each in gateway.check(None, broken)] == [Level.FAIL]
    (finding,) = gateway.check("127.0.0.1:1", None)
    assert finding.level is Level.FAIL

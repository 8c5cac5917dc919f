"""What a picker needs from its gateway, rule by rule.

Every rule here was a failure of a real gateway; what Envoy does in each case is in docs/istio.md and docs/protocol.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from zerohop_console.doctor.finding import Finding, fail, ok, warn
from zerohop_console.doctor.gateway_dump import FULL_DUPLEX, Gateway, Use, override_hosts, route_name

CHECK = "gateway"
DESTINATION = "x-gateway-destination-endpoint"
#: Each response that streams through the picker holds one request of the picker's cluster; Envoy's default is 1,024.
_FEW_REQUESTS = 10_000
#: The picker answers by itself after this; a gateway that gives up earlier never sees that answer.
_PICKER_DEADLINE_S = 0.05


def check_dump(dump: Any) -> Iterator[Finding]:
    """Findings about one configuration dump."""
    gateway = Gateway(dump)
    uses = gateway.uses()
    if not uses:
        yield fail(
            CHECK,
            "no ext_proc filter sends anything to a picker",
            "attach the pool to a route (Istio: ENABLE_GATEWAY_API_INFERENCE_EXTENSION=true), or see manifests/envoy",
        )
        return
    for use in uses:
        yield from _use(use)
    for name in dict.fromkeys(use.cluster for use in uses):
        yield from _picker_cluster(gateway, name, [use for use in uses if use.cluster == name])
    yield from _destinations(gateway)
    yield from _lost_overrides(gateway)


# The filter that asks.


def _use(use: Use) -> Iterator[Finding]:
    if use.full_duplex:
        if use.mode.get("request_trailer_mode") != "SEND":
            yield fail(CHECK, f"{use.where}: full-duplex bodies without trailers", "set request_trailer_mode: SEND")
    elif use.message_timeout_s <= _PICKER_DEADLINE_S:
        yield warn(
            CHECK,
            f"{use.where}: message_timeout {use.message_timeout_s * 1000:g} ms is no longer than the picker's deadline",
            "raise message_timeout to 100ms or more, or lower the picker's --deadline",
        )
    if use.mode.get("request_header_mode") == "SKIP":
        yield fail(CHECK, f"{use.where}: request headers are not sent to the picker", "set request_header_mode: SEND")
    if use.mode.get("request_body_mode", "NONE") in ("NONE", ""):
        yield warn(
            CHECK,
            f"{use.where}: the picker sees no bodies, so it knows neither model nor prompt",
            f"set request_body_mode to {FULL_DUPLEX} or BUFFERED; without it only load is balanced",
        )
    if use.mode.get("response_body_mode") == FULL_DUPLEX:
        yield ok(CHECK, f"{use.where}: responses stream through the picker (it must be up until they end)")
    if "envoy.lb" not in use.receives:
        yield fail(
            CHECK,
            f"{use.where}: the picker's dynamic metadata is not accepted",
            "set metadata_options.receiving_namespaces.untyped: [envoy.lb]",
        )
    if use.mutations.get("disallow_all") or _forbids(use.mutations, DESTINATION):
        yield fail(CHECK, f"{use.where}: mutation_rules forbid the destination header", "allow it in mutation_rules")


def _forbids(rules: Mapping[str, Any], header: str) -> bool:
    """True when the rules name `header`. Envoy's expressions match a whole name."""
    expression = (rules.get("disallow_expression") or {}).get("regex")
    try:
        return expression is not None and re.fullmatch(str(expression), header, re.IGNORECASE) is not None
    except re.error:  # RE2 knows things that re does not
        return False


# The cluster of the picker.


def _picker_cluster(gateway: Gateway, name: str, uses: list[Use]) -> Iterator[Finding]:
    cluster = gateway.clusters.get(name)
    if cluster is None:
        yield fail(
            CHECK, f"the picker's cluster {name!r} does not exist", "correct the cluster name, or add the cluster"
        )
        return
    if not _speaks_http2(cluster):
        yield fail(
            CHECK,
            f"{name}: does not speak HTTP/2",
            "add http2_protocol_options; in Istio name the Service's port grpc-...",
        )
    if any(use.full_duplex and use.fail_open for use in uses):
        yield from _dead_pickers(name, cluster)
    most = _most_requests(cluster)
    if most < _FEW_REQUESTS:
        yield warn(
            CHECK,
            f"{name}: max_requests is {most}: further requests get a 500 while so many are open at the picker",
            "set circuit_breakers.thresholds max_requests and max_pending_requests to 100000",
        )
    elif _panic_threshold(cluster) == 0:
        yield ok(CHECK, f"{name}: health check, panic threshold and max_requests are as they should be")


def _speaks_http2(cluster: Mapping[str, Any]) -> bool:
    options = json.dumps(cluster.get("typed_extension_protocol_options", {}))
    return "http2_protocol_options" in options or "http2_protocol_options" in cluster


def _dead_pickers(name: str, cluster: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether a picker that is dead is noticed; where addresses come by discovery, they go away with it."""
    if cluster.get("type") not in ("STATIC", None):
        return
    if "grpc_health_check" not in json.dumps(cluster.get("health_checks", [])):
        yield fail(
            CHECK,
            f"{name}: no health check, so a dead picker turns every POST into a 500 in spite of fail-open "
            "(the body has been handed over before Envoy notices)",
            "add a grpc_health_check every 0.5 s with no_traffic_interval 0.5s and healthy_panic_threshold 0",
        )
    elif _panic_threshold(cluster) != 0:
        yield fail(
            CHECK,
            f"{name}: healthy_panic_threshold is not 0, so requests go to pickers that are known to be dead",
            "set common_lb_config.healthy_panic_threshold.value: 0",
        )


def _panic_threshold(cluster: Mapping[str, Any]) -> Any:
    """Percent; None where the cluster sets none. JSON leaves zeros out: an empty threshold is 0, an absent one 50 %."""
    threshold = (cluster.get("common_lb_config") or {}).get("healthy_panic_threshold")
    return threshold.get("value", 0) if threshold is not None else None


def _most_requests(cluster: Mapping[str, Any]) -> int:
    thresholds = (cluster.get("circuit_breakers") or {}).get("thresholds") or [{}]
    return min(int(each.get("max_requests", 1024)) for each in thresholds)


# The clusters and routes of the pools.


def _destinations(gateway: Gateway) -> Iterator[Finding]:
    """Whether what the picker says is where the request goes."""
    found = False
    for name, cluster in gateway.clusters.items():
        for policy in override_hosts(cluster):
            found = True
            yield _override_host(gateway, name, policy.get("override_host_sources", []))
        if _takes_any_address(cluster):
            found = True
            yield fail(
                CHECK,
                f"{name}: an ORIGINAL_DST cluster takes one address only, and any address",
                "use override_host: it walks the picker's list and knows its hosts. Else set the picker plugin's "
                "maxNumOfEndpoints to 1 and remove the header that clients send",
            )
    if found:
        yield from _retries(gateway)
        return
    yield fail(
        CHECK,
        "no cluster takes its host from the picker",
        f"give the pool's cluster the policy override_host with the metadata source envoy.lb/{DESTINATION}",
    )


def _override_host(gateway: Gateway, name: str, sources: list[Mapping[str, Any]]) -> Finding:
    from_header = any("header" in source for source in sources)
    if from_header and not gateway.strips(DESTINATION):
        return fail(
            CHECK,
            f"{name}: takes its host from a request header, and clients can send that header",
            f"use the metadata source envoy.lb/{DESTINATION} alone, or remove the header before ext_proc",
        )
    if not from_header and not any("metadata" in source for source in sources):
        return fail(CHECK, f"{name}: override_host has no source", f"add the metadata source envoy.lb/{DESTINATION}")
    return ok(CHECK, f"{name}: takes its host from what the picker says")


def _takes_any_address(cluster: Mapping[str, Any]) -> bool:
    config = cluster.get("original_dst_lb_config") or {}
    return bool(cluster.get("type") == "ORIGINAL_DST" and config.get("use_http_header"))


def _retries(gateway: Gateway) -> Iterator[Finding]:
    """Whether the picker's second choice is ever tried."""
    pools = gateway.pool_clusters()
    for route, _, _ in gateway.routes():
        action = route.get("route") or {}
        if action.get("cluster") not in pools:
            continue
        retry = action.get("retry_policy") or {}
        if "connect-failure" not in str(retry.get("retry_on", "")):
            yield warn(
                CHECK,
                f"{route_name(route)}: no retry, so the picker's second choice is never tried",
                "set retry_policy: {retry_on: connect-failure,refused-stream,reset, num_retries: 2}",
            )


def _lost_overrides(gateway: Gateway) -> Iterator[Finding]:
    """Routes of a pool that Istio gave no override because the rule has a CORS or fault filter."""
    pools = gateway.pool_clusters()
    asks = any(use.asks and use.where.startswith("filter") for use in gateway.uses())
    for route, host, _ in gateway.routes():
        if (route.get("route") or {}).get("cluster") not in pools or asks:
            continue
        configs = {**(host.get("typed_per_filter_config") or {}), **(route.get("typed_per_filter_config") or {})}
        kinds = json.dumps([config.get("@type", "") for config in configs.values()])
        if "ExtProcPerRoute" in kinds:
            continue
        cause = (
            " (its CORS or fault filter displaced the picker's override)" if "cors" in kinds or "fault" in kinds else ""
        )
        yield fail(
            CHECK,
            f"{route_name(route)}: goes to a pool and never asks the picker{cause}",
            "put CORS and fault rules into another HTTPRoute rule, or into the gateway",
        )

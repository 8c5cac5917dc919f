"""An Envoy's configuration dump against what a picker needs from its gateway.

Every rule here was a failure of a real gateway; what Envoy does in each case is in docs/istio.md and docs/protocol.md.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerohop_console.doctor.finding import Finding, fail, ok, skip, warn

DESTINATION = "x-gateway-destination-endpoint"
_CHECK = "gateway"
_FDS = "FULL_DUPLEX_STREAMED"
#: Each response that streams through the picker holds one request of the picker's cluster; Envoy's default is 1,024.
_FEW_REQUESTS = 10_000
#: The picker answers by itself after this; a gateway that gives up earlier never sees that answer.
_PICKER_DEADLINE_S = 0.05
_DEFAULT_MESSAGE_TIMEOUT_S = 0.2


def fetch(admin: str) -> Any:
    """The dump of an admin page. Raises: OSError, ValueError."""
    with urllib.request.urlopen(f"http://{admin}/config_dump?include_eds", timeout=10) as answer:
        return json.load(answer)


def check(admin: str | None, dump_file: Path | None) -> Iterator[Finding]:
    """Findings about a gateway; neither given: skipped."""
    if admin is None and dump_file is None:
        yield skip(_CHECK, "no gateway to look at; give --envoy-admin HOST:PORT or --config-dump FILE")
        return
    try:
        dump = json.loads(dump_file.read_text()) if dump_file is not None else fetch(str(admin))
    except (OSError, ValueError, urllib.error.URLError) as error:
        yield fail(
            _CHECK, f"no configuration dump from {dump_file or admin}: {error}", "kubectl port-forward its port 15000"
        )
        return
    try:
        yield from list(check_dump(dump))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        yield fail(
            _CHECK, f"{dump_file or admin} is not the configuration dump of an Envoy: {type(error).__name__} {error}",
            "save /config_dump of its admin page as it is",
        )  # fmt: skip


def check_dump(dump: Any) -> Iterator[Finding]:
    """Findings about one configuration dump."""
    gateway = Gateway(dump)
    uses = gateway.uses()
    if not uses:
        yield fail(
            _CHECK,
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


@dataclass(frozen=True, slots=True)
class Use:
    """One place that asks a picker: a filter, or a route's override of one."""

    where: str
    cluster: str
    mode: Mapping[str, str]
    fail_open: bool
    message_timeout_s: float
    receives: tuple[str, ...]
    mutations: Mapping[str, Any]

    @property
    def full_duplex(self) -> bool:
        """True when the request's body goes both ways as a stream."""
        return self.mode.get("request_body_mode") == _FDS


class Gateway:
    """Finds its way in a configuration dump."""

    def __init__(self, dump: Any) -> None:
        self._dump = dump
        self.clusters: dict[str, Mapping[str, Any]] = {}
        for body in _typed(dump, "envoy.config.cluster.v3.Cluster"):
            self.clusters[body.get("name", "")] = body
        for section in _typed(dump, "ClustersConfigDump"):
            for entry in [*section.get("static_clusters", []), *section.get("dynamic_active_clusters", [])]:
                cluster = entry.get("cluster", {})
                self.clusters[cluster.get("name", "")] = cluster
        self.managers = list(_typed(dump, "HttpConnectionManager"))

    def routes(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]:
        """Each route with its virtual host and its route configuration."""
        configs = [manager["route_config"] for manager in self.managers if "route_config" in manager]
        for section in _typed(self._dump, "RoutesConfigDump"):
            for entry in [*section.get("static_route_configs", []), *section.get("dynamic_route_configs", [])]:
                if (config := entry.get("route_config")) not in configs:
                    configs.append(config)
        for config in configs:
            for host in (config or {}).get("virtual_hosts", []):
                for route in host.get("routes", []):
                    yield route, host, config

    def filters(self) -> list[Mapping[str, Any]]:
        """The configuration of every ext_proc filter."""
        return list(_typed(self._dump, "ext_proc.v3.ExternalProcessor"))

    def uses(self) -> list[Use]:
        """Every place that really asks a picker; a filter that skips everything only carries overrides."""
        filters = self.filters()
        base = filters[0] if filters else {}
        found = [
            use
            for index, config in enumerate(filters)
            if (use := _use_of(f"filter {index}", config, {})) and _asks(use.mode)
        ]
        for route, host, _ in self.routes():
            for place in (route, host):
                for config in (place.get("typed_per_filter_config") or {}).values():
                    if not str(config.get("@type", "")).endswith("ext_proc.v3.ExtProcPerRoute"):
                        continue
                    name = f"route {route.get('name') or _match(route)}"
                    use = _use_of(name, base, config.get("overrides") or {})
                    if use is not None and _asks(use.mode) and use not in found:
                        found.append(use)
        return found

    def strips_header(self) -> bool:
        """True when clients cannot bring a destination header of their own."""
        for body in _typed(self._dump, "header_mutation.v3.HeaderMutation"):
            mutations = (body.get("mutations") or {}).get("request_mutations", [])
            if any(str(each.get("remove", "")).lower() == DESTINATION for each in mutations):
                return True
        removed: list[str] = []
        for route, host, config in self.routes():
            for place in (route, host, config):
                removed += [str(name).lower() for name in place.get("request_headers_to_remove", [])]
        for manager in self.managers:
            for mutation in manager.get("early_header_mutation_extensions") or []:
                if DESTINATION in json.dumps(mutation).lower():
                    return True
        return DESTINATION in removed


def _use(use: Use) -> Iterator[Finding]:
    if use.full_duplex:
        if use.mode.get("request_trailer_mode") != "SEND":
            yield fail(_CHECK, f"{use.where}: full-duplex bodies without trailers", "set request_trailer_mode: SEND")
    elif use.message_timeout_s <= _PICKER_DEADLINE_S:
        yield warn(
            _CHECK,
            f"{use.where}: message_timeout {use.message_timeout_s * 1000:g} ms is no longer than the picker's deadline",
            "raise message_timeout to 100ms or more, or lower the picker's --deadline",
        )
    if use.mode.get("request_header_mode") == "SKIP":
        yield fail(_CHECK, f"{use.where}: request headers are not sent to the picker", "set request_header_mode: SEND")
    if use.mode.get("request_body_mode", "NONE") in ("NONE", ""):
        yield warn(
            _CHECK,
            f"{use.where}: the picker sees no bodies, so it knows neither model nor prompt",
            f"set request_body_mode to {_FDS} or BUFFERED; without it only load is balanced",
        )
    if use.mode.get("response_body_mode") == _FDS:
        yield ok(_CHECK, f"{use.where}: responses stream through the picker (it must be up until they end)")
    if "envoy.lb" not in use.receives:
        yield fail(
            _CHECK,
            f"{use.where}: the picker's dynamic metadata is not accepted",
            "set metadata_options.receiving_namespaces.untyped: [envoy.lb]",
        )
    if use.mutations.get("disallow_all") or _forbids(use.mutations, DESTINATION):
        yield fail(_CHECK, f"{use.where}: mutation_rules forbid the destination header", "allow it in mutation_rules")


def _forbids(rules: Mapping[str, Any], header: str) -> bool:
    """True when the rules name `header`. Envoy's expressions match a whole name."""
    expression = (rules.get("disallow_expression") or {}).get("regex")
    try:
        return expression is not None and re.fullmatch(str(expression), header, re.IGNORECASE) is not None
    except re.error:  # RE2 knows things that re does not
        return False


def _picker_cluster(gateway: Gateway, name: str, uses: list[Use]) -> Iterator[Finding]:
    cluster = gateway.clusters.get(name)
    if cluster is None:
        yield fail(
            _CHECK, f"the picker's cluster {name!r} does not exist", "correct the cluster name, or add the cluster"
        )
        return
    options = json.dumps(cluster.get("typed_extension_protocol_options", {}))
    if "http2_protocol_options" not in options and "http2_protocol_options" not in cluster:
        yield fail(
            _CHECK,
            f"{name}: does not speak HTTP/2",
            "add http2_protocol_options; in Istio name the Service's port grpc-...",
        )
    static = cluster.get("type") in ("STATIC", None)
    checks = json.dumps(cluster.get("health_checks", []))
    blind = any(use.full_duplex and use.fail_open for use in uses)
    threshold = (cluster.get("common_lb_config") or {}).get("healthy_panic_threshold")
    # JSON leaves zeros out: an empty threshold is 0, an absent one is 50 %.
    panic = threshold.get("value", 0) if threshold is not None else None
    if blind and static and "grpc_health_check" not in checks:
        yield fail(
            _CHECK,
            f"{name}: no health check, so a dead picker turns every POST into a 500 in spite of fail-open "
            "(the body has been handed over before Envoy notices)",
            "add a grpc_health_check every 0.5 s with no_traffic_interval 0.5s and healthy_panic_threshold 0",
        )
    elif blind and static and panic not in (0, 0.0):
        yield fail(
            _CHECK,
            f"{name}: healthy_panic_threshold is not 0, so requests go to pickers that are known to be dead",
            "set common_lb_config.healthy_panic_threshold.value: 0",
        )
    thresholds = (cluster.get("circuit_breakers") or {}).get("thresholds") or [{}]
    most = min(int(each.get("max_requests", 1024)) for each in thresholds)
    if most < _FEW_REQUESTS:
        yield warn(
            _CHECK,
            f"{name}: max_requests is {most}: further requests get a 500 while so many are open at the picker",
            "set circuit_breakers.thresholds max_requests and max_pending_requests to 100000",
        )
    if panic in (0, 0.0) and most >= _FEW_REQUESTS:
        yield ok(_CHECK, f"{name}: health check, panic threshold and max_requests are as they should be")


def _destinations(gateway: Gateway) -> Iterator[Finding]:
    found = False
    for name, cluster in gateway.clusters.items():
        for body in _typed(cluster, "override_host.v3.OverrideHost"):
            found = True
            sources = body.get("override_host_sources", [])
            if any("header" in source for source in sources) and not gateway.strips_header():
                yield fail(
                    _CHECK,
                    f"{name}: takes its host from a request header, and clients can send that header",
                    f"use the metadata source envoy.lb/{DESTINATION} alone, or remove the header before ext_proc",
                )
            elif not any("metadata" in source for source in sources) and not any(
                "header" in source for source in sources
            ):
                yield fail(
                    _CHECK, f"{name}: override_host has no source", f"add the metadata source envoy.lb/{DESTINATION}"
                )
            else:
                yield ok(_CHECK, f"{name}: takes its host from what the picker says")
        if cluster.get("type") == "ORIGINAL_DST" and (cluster.get("original_dst_lb_config") or {}).get(
            "use_http_header"
        ):
            found = True
            yield fail(
                _CHECK,
                f"{name}: an ORIGINAL_DST cluster takes one address only, and any address",
                "use override_host: it walks the picker's list and knows its hosts. Else set the picker plugin's "
                "maxNumOfEndpoints to 1 and remove the header that clients send",
            )
    if not found:
        yield fail(
            _CHECK,
            "no cluster takes its host from the picker",
            f"give the pool's cluster the policy override_host with the metadata source envoy.lb/{DESTINATION}",
        )
        return
    pools = {
        name for name, cluster in gateway.clusters.items() if list(_typed(cluster, "override_host.v3.OverrideHost"))
    }
    for route, _, _ in gateway.routes():
        action = route.get("route") or {}
        if action.get("cluster") not in pools:
            continue
        retry = action.get("retry_policy") or {}
        if "connect-failure" not in str(retry.get("retry_on", "")):
            yield warn(
                _CHECK,
                f"route {route.get('name') or _match(route)}: no retry, so the picker's second choice is never tried",
                "set retry_policy: {retry_on: connect-failure,refused-stream,reset, num_retries: 2}",
            )


def _lost_overrides(gateway: Gateway) -> Iterator[Finding]:
    """Routes of a pool that Istio gave no override because the rule has a CORS or fault filter."""
    pools = {
        name for name, cluster in gateway.clusters.items() if list(_typed(cluster, "override_host.v3.OverrideHost"))
    }
    asks = any(_asks(use.mode) and use.where.startswith("filter") for use in gateway.uses())
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
            _CHECK,
            f"route {route.get('name') or _match(route)}: goes to a pool and never asks the picker{cause}",
            "put CORS and fault rules into another HTTPRoute rule, or into the gateway",
        )


def _use_of(where: str, base: Mapping[str, Any], override: Mapping[str, Any]) -> Use | None:
    service = override.get("grpc_service") or base.get("grpc_service") or {}
    cluster = (service.get("envoy_grpc") or {}).get("cluster_name") or (service.get("google_grpc") or {}).get(
        "target_uri"
    )
    if not cluster:
        return None
    options = override.get("metadata_options") or base.get("metadata_options") or {}
    return Use(
        where=where,
        cluster=str(cluster),
        mode={**(base.get("processing_mode") or {}), **(override.get("processing_mode") or {})},
        fail_open=bool(override.get("failure_mode_allow", base.get("failure_mode_allow", False))),
        message_timeout_s=_seconds(base.get("message_timeout")),
        receives=tuple((options.get("receiving_namespaces") or {}).get("untyped", ())),
        mutations=base.get("mutation_rules") or {},
    )


def _asks(mode: Mapping[str, str]) -> bool:
    """True unless every phase is skipped. Absent header modes mean SEND in Envoy."""
    return (
        mode.get("request_header_mode", "SEND") != "SKIP"
        or mode.get("request_body_mode", "NONE") != "NONE"
        or mode.get("response_header_mode", "SEND") != "SKIP"
    )


def _seconds(text: Any) -> float:
    try:
        return float(str(text).removesuffix("s")) if text is not None else _DEFAULT_MESSAGE_TIMEOUT_S
    except ValueError:
        return _DEFAULT_MESSAGE_TIMEOUT_S


def _match(route: Mapping[str, Any]) -> str:
    match = route.get("match") or {}
    return str(match.get("prefix") or match.get("path") or match.get("path_separated_prefix") or match)


def _typed(body: Any, suffix: str) -> Iterator[Mapping[str, Any]]:
    """Every object in `body` whose @type ends with `suffix`, at any depth."""
    if isinstance(body, dict):
        if str(body.get("@type", "")).endswith(suffix):
            yield body
        for value in body.values():
            yield from _typed(value, suffix)
    elif isinstance(body, list):
        for value in body:
            yield from _typed(value, suffix)

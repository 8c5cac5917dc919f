"""Finds its way in an Envoy's configuration dump: clusters, routes, and every place that asks a picker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

FULL_DUPLEX = "FULL_DUPLEX_STREAMED"
_DEFAULT_MESSAGE_TIMEOUT_S = 0.2


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
    def asks(self) -> bool:
        """True unless every phase is skipped. Absent header modes mean SEND in Envoy."""
        return (
            self.mode.get("request_header_mode", "SEND") != "SKIP"
            or self.mode.get("request_body_mode", "NONE") != "NONE"
            or self.mode.get("response_header_mode", "SEND") != "SKIP"
        )

    @property
    def full_duplex(self) -> bool:
        """True when the request's body goes both ways as a stream."""
        return self.mode.get("request_body_mode") == FULL_DUPLEX


class Gateway:
    """What one Envoy is configured to do."""

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
            use for index, config in enumerate(filters) if (use := _use(f"filter {index}", config, {})) and use.asks
        ]
        for route, host, _ in self.routes():
            for place in (route, host):
                for config in (place.get("typed_per_filter_config") or {}).values():
                    if not str(config.get("@type", "")).endswith("ext_proc.v3.ExtProcPerRoute"):
                        continue
                    use = _use(route_name(route), base, config.get("overrides") or {})
                    if use is not None and use.asks and use not in found:
                        found.append(use)
        return found

    def pool_clusters(self) -> set[str]:
        """Names of the clusters that take their host from what a picker says."""
        return {name for name, cluster in self.clusters.items() if override_hosts(cluster)}

    def strips(self, header: str) -> bool:
        """True when clients cannot bring a header of that name of their own."""
        for body in _typed(self._dump, "header_mutation.v3.HeaderMutation"):
            mutations = (body.get("mutations") or {}).get("request_mutations", [])
            if any(str(each.get("remove", "")).lower() == header for each in mutations):
                return True
        removed: list[str] = []
        for route, host, config in self.routes():
            for place in (route, host, config):
                removed += [str(name).lower() for name in place.get("request_headers_to_remove", [])]
        for manager in self.managers:
            for mutation in manager.get("early_header_mutation_extensions") or []:
                if header in json.dumps(mutation).lower():
                    return True
        return header in removed


def route_name(route: Mapping[str, Any]) -> str:
    """A route as findings call it: by its name, else by what it matches."""
    return f"route {route.get('name') or _matched(route)}"


def override_hosts(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The cluster's policies that take the host from what a picker says."""
    return list(_typed(cluster, "override_host.v3.OverrideHost"))


def _use(where: str, base: Mapping[str, Any], override: Mapping[str, Any]) -> Use | None:
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


def _matched(route: Mapping[str, Any]) -> str:
    match = route.get("match") or {}
    return str(match.get("prefix") or match.get("path") or match.get("path_separated_prefix") or match)


def _seconds(text: Any) -> float:
    try:
        return float(str(text).removesuffix("s")) if text is not None else _DEFAULT_MESSAGE_TIMEOUT_S
    except ValueError:
        return _DEFAULT_MESSAGE_TIMEOUT_S


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

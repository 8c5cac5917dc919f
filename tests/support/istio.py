"""An Envoy as Istio configures it for an InferencePool, written down from what its control plane generates.

The listener has an ext_proc filter that does nothing; the route of the pool overrides it with the picker's cluster and
full-duplex bodies both ways; the pool's cluster takes its host from dynamic metadata only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerohop_process.address import Address

_TYPE = "type.googleapis.com/envoy."
_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
DESTINATION = "x-gateway-destination-endpoint"


def bootstrap(
    picker: Address | Sequence[Path], endpoints: Sequence[Address], *, tls: bool = True, fail_open: bool = True
) -> dict[str, Any]:
    """The bootstrap: listener `inference` and the admin page on free ports of 127.0.0.1.

    `picker` is a Service's address, or the sockets of an EnvoyFilter.
    """
    override = {
        "@type": f"{_TYPE}extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
        "overrides": {
            "grpc_service": {"envoy_grpc": {"cluster_name": "outbound|9002||zerohop.inference.svc.cluster.local"}},
            "failure_mode_allow": fail_open,
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": "FULL_DUPLEX_STREAMED",
                "request_trailer_mode": "SEND",
                "response_header_mode": "SEND",
                "response_body_mode": "FULL_DUPLEX_STREAMED",
                "response_trailer_mode": "SEND",
            },
        },
    }
    pool = "outbound|54321||llama-ip-0a1b2c3d.inference.svc.cluster.local"
    routes = [
        {"match": {"prefix": "/plain"}, "route": {"cluster": pool, "timeout": "0s"}},
        {
            "match": {"prefix": "/"},
            "name": "inference.llama.0",
            "route": {
                "cluster": pool,
                "timeout": "0s",
                "retry_policy": {"retry_on": "connect-failure,refused-stream,unavailable,503", "num_retries": 2},
            },
            "typed_per_filter_config": {"envoy.filters.http.ext_proc": override},
        },
    ]
    manager = {
        "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "inference",
        "http_filters": [
            _dormant_filter(),
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPE}extensions.filters.http.router.v3.Router"},
            },
        ],
        "route_config": {"name": "http.80", "virtual_hosts": [{"name": "*:80", "domains": ["*"], "routes": routes}]},
    }
    listener = {
        "name": "inference",
        "address": _tcp(Address("127.0.0.1", 0)),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {
        "admin": {"address": _tcp(Address("127.0.0.1", 0))},
        "static_resources": {
            "listeners": [listener],
            "clusters": [_picker_cluster(picker, tls=tls), _pool_cluster(pool, endpoints)],
        },
    }


def _dormant_filter() -> dict[str, Any]:
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{_TYPE}extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "dummy"}},
            "failure_mode_allow": True,
            "message_timeout": "1000s",
            "processing_mode": {
                "request_header_mode": "SKIP",
                "response_header_mode": "SKIP",
                "request_trailer_mode": "SKIP",
                "response_trailer_mode": "SKIP",
            },
            "metadata_options": {
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
                "forwarding_namespaces": {"untyped": ["envoy.lb"]},
            },
        },
    }


def _picker_cluster(picker: Address | Sequence[Path], *, tls: bool) -> dict[str, Any]:
    name = "outbound|9002||zerohop.inference.svc.cluster.local"
    addresses = [_tcp(picker)] if isinstance(picker, Address) else [{"pipe": {"path": str(path)}} for path in picker]
    cluster: dict[str, Any] = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "10s",
        "circuit_breakers": {"thresholds": [{"max_requests": 4294967295, "max_pending_requests": 4294967295}]},
        "typed_extension_protocol_options": {
            _OPTIONS: {
                "@type": f"type.googleapis.com/{_OPTIONS}",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": _assignment(name, addresses),
    }
    if tls:
        cluster["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": f"{_TYPE}extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "common_tls_context": {"alpn_protocols": ["h2"]},
            },
        }
    return cluster


def _pool_cluster(name: str, endpoints: Sequence[Address]) -> dict[str, Any]:
    source = {"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "10s",
        "load_assignment": _assignment(name, [_tcp(address) for address in endpoints]),
        "load_balancing_policy": _policy(
            "override_host",
            "OverrideHost",
            override_host_sources=[source],
            fallback_policy=_policy("round_robin", "RoundRobin"),
        ),
    }


def _policy(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    config = {"@type": f"{_TYPE}extensions.load_balancing_policies.{name}.v3.{kind}", **fields}
    return {
        "policies": [
            {"typed_extension_config": {"name": f"envoy.load_balancing_policies.{name}", "typed_config": config}}
        ]
    }


def _assignment(name: str, addresses: Sequence[dict[str, Any]]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": address}} for address in addresses]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _tcp(address: Address) -> dict[str, Any]:
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def with_envoy_filter(
    bootstrap: dict[str, Any], envoy_filter: Mapping[str, Any], context: str, socket: Path | None = None
) -> dict[str, Any]:
    """The bootstrap with the patches of an EnvoyFilter for `context`, applied as Istio applies them.

    `socket` replaces the picker's socket. Raises: AssertionError for a patch that finds nothing to change.
    """
    result: dict[str, Any] = json.loads(json.dumps(bootstrap))
    clusters = result["static_resources"]["clusters"]
    chain = result["static_resources"]["listeners"][0]["filter_chains"][0]
    manager = chain["filters"][0]["typed_config"]
    for patch in envoy_filter["spec"]["configPatches"]:
        match, operation = patch["match"], patch["patch"]["operation"]
        value = json.loads(json.dumps(patch["patch"]["value"]))
        if match["context"] != context:
            continue
        kind = (patch["applyTo"], operation)
        if kind == ("CLUSTER", "ADD"):
            clusters.append(_at_socket(value, socket))
        elif kind == ("CLUSTER", "MERGE"):
            wanted = f"outbound|{match['cluster']['portNumber']}||{match['cluster']['service']}"
            (found,) = [cluster for cluster in clusters if cluster["name"] == wanted]
            _merge(found, value)
        elif kind == ("HTTP_FILTER", "INSERT_BEFORE"):
            wanted = match["listener"]["filterChain"]["filter"]["subFilter"]["name"]
            names = [each["name"] for each in manager["http_filters"]]
            manager["http_filters"].insert(names.index(wanted), value)
        elif kind == ("HTTP_ROUTE", "MERGE"):
            found_routes = list(_routes(manager, match["routeConfiguration"]["vhost"]))
            assert found_routes, f"no route for {match}"
            for route in found_routes:
                _merge(route, value)
        else:
            raise AssertionError(f"{kind} is not known here")
    return result


def sidecar_bootstrap(host: str, port: int, endpoints: Sequence[Address]) -> dict[str, Any]:
    """The outbound half of a sidecar: one virtual host per Service and port, and its cluster."""
    name = f"outbound|{port}||{host}"
    manager = {
        "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "outbound",
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPE}extensions.filters.http.router.v3.Router"},
            }
        ],
        "route_config": {
            "name": str(port),
            "virtual_hosts": [
                {
                    "name": f"{host}:{port}",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": name, "timeout": "0s"}}],
                }
            ],
        },
    }
    listener = {
        "name": "outbound",
        "address": _tcp(Address("127.0.0.1", 0)),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    cluster = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "10s",
        "lb_policy": "LEAST_REQUEST",
        "load_assignment": _assignment(name, [_tcp(address) for address in endpoints]),
    }
    return {
        "admin": {"address": _tcp(Address("127.0.0.1", 0))},
        "static_resources": {"listeners": [listener], "clusters": [cluster]},
    }


def _routes(manager: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for host in manager["route_config"]["virtual_hosts"]:
        if wanted.get("name") not in (None, host["name"]):
            continue
        for route in host["routes"]:
            if wanted.get("route", {}).get("name") in (None, route.get("name")):
                yield route


def _merge(into: dict[str, Any], value: Mapping[str, Any]) -> None:
    """As protobuf merges: messages into messages; an Any (here: an object with @type) is replaced whole."""
    for key, new in value.items():
        if isinstance(new, dict) and "@type" not in new and isinstance(into.get(key), dict):
            _merge(into[key], new)
        else:
            into[key] = new


def _at_socket(cluster: dict[str, Any], socket: Path | None) -> dict[str, Any]:
    if socket is None:
        return cluster
    for group in cluster["load_assignment"]["endpoints"]:
        for endpoint in group["lb_endpoints"]:
            pipe = endpoint["endpoint"]["address"]["pipe"]
            suffix = pipe["path"].rpartition("picker.sock")[2]
            pipe["path"] = f"{socket}{suffix}"
    return cluster

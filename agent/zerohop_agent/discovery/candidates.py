"""Pods and pools in, endpoints out: pure, so that every rule is one row of a test.

A pod is an endpoint of a pool on each target port of the pool when it
* matches every label of the pool's selector, in the pool's namespace,
* is Ready, has an address, and has not finished,
* and, where it says which ports are live (`llm-d.ai/active-ports`), says so of this one.
A pod that is being deleted stays as a draining endpoint while it is Ready: no new requests, those that run may end.
Of two pods with one address the younger has it: an address can be another pod's within a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zerohop_agent.discovery.customs import Custom
from zerohop_agent.discovery.pods import Pod
from zerohop_agent.discovery.resources import K8S_GROUP, Role
from zerohop_agent.discovery.settings import DiscoverySettings
from zerohop_agent.endpoints import EndpointSet, EndpointSpec, PoolSpec
from zerohop_process.address import Address
from zerohop_snapshot.layout import DrainReason

#: The snapshot has one bit per pool.
MOST_POOLS = 64


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool, whichever API it came from."""

    namespace: str
    name: str
    match_labels: Mapping[str, str]
    target_ports: tuple[int, ...]
    app_protocol: str = "http"
    attributes: Mapping[str, Any] | None = None

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def selects(self, pod: Pod) -> bool:
        """True when `pod` is of this pool. A pool of flags without a namespace selects in every namespace."""
        if self.namespace and pod.namespace != self.namespace:
            return False
        labels = pod.labels
        return all(labels.get(key) == value for key, value in self.match_labels.items())


def pools_of(customs: Iterable[Custom], settings: DiscoverySettings) -> tuple[list[Pool], list[str]]:
    """The pools to serve, by name, and one sentence for each that cannot be served as it stands.

    A name that both API groups have is taken from the newer one.
    """
    complaints: list[str] = []
    found: dict[str, tuple[bool, Pool]] = {}
    for custom in customs:
        if custom.resource.role is not Role.POOLS or not settings.watches_namespace(custom.namespace):
            continue
        if settings.pools and (custom.namespace, custom.name) not in settings.pools:
            continue
        if custom.invalid is not None:
            complaints.append(f"InferencePool {custom.full_name} is not valid: {custom.invalid}")
            continue
        newer = custom.resource.group == K8S_GROUP
        if custom.full_name in found:
            complaints.append(f"InferencePool {custom.full_name} exists in both API groups; {K8S_GROUP} counts")
            if not newer:
                continue
        found[custom.full_name] = (newer, _pool(custom))
    if settings.static_pool is not None:
        static = settings.static_pool
        pool = Pool(static.namespace, static.name, dict(static.match_labels), static.target_ports)
        found[pool.full_name] = (True, pool)
    pools = [found[name][1] for name in sorted(found)]
    if len(pools) > MOST_POOLS:
        left_out = ", ".join(pool.full_name for pool in pools[MOST_POOLS:])
        complaints.append(
            f"more than {MOST_POOLS} pools: {left_out} are not served; choose with --namespaces or --pool"
        )
    return pools[:MOST_POOLS], complaints


def endpoints_of(pods: Iterable[Pod], pools: list[Pool], settings: DiscoverySettings) -> list[EndpointSpec]:
    """Every endpoint of `pools`, by key. Keys are `uid/port`, so a new pod at an old address is a new endpoint."""
    by_address: dict[tuple[str, int], tuple[tuple[bool, float, str], EndpointSpec]] = {}
    for pod in pods:
        local = pod.node == settings.node_name or not settings.node_name
        if settings.scope == "node" and not local:
            continue
        ip = pod.address(settings.ip_family)
        if ip is None or not pod.ready or pod.finished:
            continue
        for spec in _of_pod(pod, ip, pools, settings, local=local):
            rank = (not pod.terminating, pod.created, pod.uid)
            place = (spec.address.host, spec.address.port)
            if place not in by_address or by_address[place][0] < rank:
                by_address[place] = (rank, spec)
    return sorted((spec for _, spec in by_address.values()), key=lambda spec: spec.key)


def with_objects(pools: list[Pool], customs: Iterable[Custom], duplicates: frozenset[str]) -> tuple[PoolSpec, ...]:
    """The pools with the objectives, rewrites and models that refer to them; `duplicates` are uids of models whose name
    an older one has.
    """
    groups: dict[str, dict[Role, list[Custom]]] = {pool.full_name: {} for pool in pools}
    for custom in customs:
        if custom.resource.role is Role.POOLS or custom.invalid is not None or custom.uid in duplicates:
            continue
        if custom.pool in groups:
            groups[custom.pool].setdefault(custom.resource.role, []).append(custom)
    return tuple(_pool_spec(pool, groups[pool.full_name]) for pool in pools)


def endpoint_set(
    pods: Iterable[Pod],
    pools: list[Pool],
    customs: Iterable[Custom],
    duplicates: frozenset[str],
    settings: DiscoverySettings,
) -> EndpointSet:
    """Everything that discovery knows, as the agent's runtime takes it."""
    return EndpointSet(
        endpoints=tuple(endpoints_of(pods, pools, settings)), pools=with_objects(pools, customs, duplicates)
    )


def _pool(custom: Custom) -> Pool:
    spec = custom.spec
    attributes: dict[str, Any] = {"created": custom.created, "uid": custom.uid}
    if "endpointPickerRef" in spec:
        attributes["failureMode"] = spec["endpointPickerRef"]["failureMode"]
    return Pool(
        namespace=custom.namespace,
        name=custom.name,
        match_labels=spec["selector"]["matchLabels"],
        target_ports=tuple(port["number"] for port in spec["targetPorts"]),
        app_protocol=spec["appProtocol"],
        attributes=attributes,
    )


def _of_pod(pod: Pod, ip: str, pools: list[Pool], settings: DiscoverySettings, *, local: bool) -> list[EndpointSpec]:
    specs: dict[int, EndpointSpec] = {}
    for pool in pools:
        if not pool.selects(pod):
            continue
        for rank, port in enumerate(pool.target_ports):
            if pod.active_ports is not None and port not in pod.active_ports:
                continue
            if port in specs:
                specs[port] = replace(specs[port], pools=(*specs[port].pools, pool.full_name))
                continue
            specs[port] = EndpointSpec(
                key=f"{pod.uid}/{port}",
                address=Address(ip, port),
                name=f"{pod.namespace}/{pod.name}-rank-{rank}",
                uid=pod.uid,
                pools=(pool.full_name,),
                labels=pod.labels,
                engine=pod.engine,
                role=pod.role,
                metrics_scheme=settings.metrics_scheme,
                metrics_path=settings.metrics_path,
                metrics_port=settings.metrics_port,
                scrape_interval_ns=None if local else settings.remote_scrape_interval_ns,
                origin="" if local else pod.node,
                draining=pod.terminating,
                drain_reason=DrainReason.POD_TERMINATING if pod.terminating else DrainReason.NONE,
            )
    return list(specs.values())


def _pool_spec(pool: Pool, objects: Mapping[Role, list[Custom]]) -> PoolSpec:
    def entries(role: Role) -> tuple[dict[str, Any], ...]:
        # Oldest first, then by name: the order in which precedence rules read them.
        found = sorted(objects.get(role, []), key=lambda custom: (custom.created, custom.name))
        return tuple(custom.entry() for custom in found)

    return PoolSpec(
        name=pool.full_name,
        app_protocol=pool.app_protocol,
        objectives=entries(Role.OBJECTIVES),
        rewrites=entries(Role.REWRITES),
        models=entries(Role.MODELS),
        attributes=pool.attributes or {},
    )

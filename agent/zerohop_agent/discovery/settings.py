"""What discovery is asked to do; every default with its reason. `flags` reads it from a command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Source = Literal["off", "auto", "kubelet", "api"]
Scope = Literal["node", "pool"]

#: Where the kubelet serves its Pods API (KEP-4188): since 1.37, and in the alpha of 1.35.
KUBELET_PODS_SOCKETS = (
    Path("/var/lib/kubelet/pods-api/pods-api.sock"),
    Path("/var/lib/kubelet/pods/kubelet.sock"),
)


@dataclass(frozen=True, slots=True)
class StaticPool:
    """A pool that flags describe, for clusters without the InferencePool CRD and for pickers without an API server."""

    namespace: str
    name: str
    match_labels: tuple[tuple[str, str], ...]
    target_ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """All that discovery needs to know. Durations are seconds: the loop counts in the clock's unit."""

    source: Source = "off"
    scope: Scope = "node"
    node_name: str = ""
    #: Namespaces to watch; empty: all of them (one cluster-wide watch per resource).
    namespaces: tuple[str, ...] = ()
    #: Pools to serve as (namespace, name); empty: every pool of the watched namespaces.
    pools: tuple[tuple[str, str], ...] = ()
    pool_group: str | None = None
    static_pool: StaticPool | None = None
    #: None: the first of the known places where there is one.
    kubelet_socket: Path | None = None
    kubeconfig: Path | None = None
    remote_scrape_interval_ns: int = 500_000_000
    ip_family: Literal["primary", "ipv4", "ipv6"] = "primary"
    metrics_scheme: str = "http"
    metrics_path: str = "/metrics"
    metrics_port: int | None = None
    #: Namespace and name of the Lease that elects the agent which writes statuses.
    lease_namespace: str = "zerohop-system"
    lease_name: str = "zerohop-status"
    write_status: bool = True
    identity: str = ""
    #: A watch ends by itself after this long, so that silence is never longer than it plus the grace below.
    watch_timeout_s: float = 240.0
    #: How much later than `watch_timeout_s` a silent connection counts as dead.
    watch_grace_s: float = 15.0
    #: A full list this often repairs whatever a watch may have missed.
    relist_interval_s: float = 600.0
    #: How often the API server is asked which of our resources it serves.
    api_discovery_interval_s: float = 60.0
    #: Spread of the first request; a roll of the DaemonSet starts every agent at once.
    start_jitter_s: float = 2.0
    #: First and longest pause after a failure.
    backoff_first_s: float = 0.5
    backoff_most_s: float = 30.0
    #: How often the status writer looks for a first InferenceModel.
    status_idle_s: float = 5.0
    #: How long the first endpoint set waits for objectives, rewrites and models.
    first_wait_s: float = 1.0
    #: Changes within this window become one new endpoint set.
    coalesce_s: float = 0.01

    @property
    def needs_no_server(self) -> bool:
        """True when the kubelet's pods and a pool of flags are all there is to know."""
        return self.static_pool is not None and self.scope == "node"

    def watches_namespace(self, namespace: str) -> bool:
        """True when objects of `namespace` are of interest."""
        return not self.namespaces or namespace in self.namespaces


def find_pods_socket(asked: Path | None) -> Path | None:
    """The Pods API socket: the one that was asked for, else the first of the known places where one exists.

    Raises: PermissionError when this user may not look there.
    """
    for path in (asked,) if asked is not None else KUBELET_PODS_SOCKETS:
        if path.is_socket():
            return path
    return None

"""What discovery is asked to do, from flags; every default with its reason."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from zerohop_process.errors import ConfigError
from zerohop_process.units import duration

Source = Literal["off", "auto", "kubelet", "api"]
Scope = Literal["node", "pool"]

#: Where the kubelet serves its Pods API (KEP-4188): since 1.37, and in the alpha of 1.35.
KUBELET_PODS_SOCKETS = (
    Path("/var/lib/kubelet/pods-api/pods-api.sock"),
    Path("/var/lib/kubelet/pods/kubelet.sock"),
)
#: An InferencePool holds at most 8 target ports.
MOST_TARGET_PORTS = 8
_LABEL_TERM = re.compile(r"^([A-Za-z0-9./_-]+)=([A-Za-z0-9._-]*)$")
_OBJECT_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the discovery flags to the agent's parser; `from_arguments` reads them."""
    group = parser.add_argument_group("Kubernetes discovery")
    group.add_argument(
        "--discovery",
        choices=["off", "auto", "kubelet", "api"],
        default="off",
        help="find model servers in Kubernetes: kubelet (this node's pods from its Pods API socket), api (all pods "
        "from the API server), auto (kubelet where its socket answers, else api); default off",
    )
    group.add_argument(
        "--scope",
        choices=["node", "pool"],
        default="node",
        help="node: endpoints of this node; pool: also the pool's endpoints on other nodes, which always come from the "
        "API server and are read more slowly",
    )
    group.add_argument("--node-name", metavar="NAME", default=None, help="this node's name (default: $NODE_NAME)")
    group.add_argument(
        "--namespaces",
        metavar="NS[,NS...]",
        default="",
        help="namespaces to watch (default: all; see docs/kubernetes.md)",
    )
    group.add_argument(
        "--pool",
        metavar="NS/NAME",
        action="append",
        default=[],
        help="serve only this pool; may be given several times",
    )
    group.add_argument(
        "--pool-group",
        choices=["inference.networking.k8s.io", "inference.networking.x-k8s.io"],
        default=None,
        help="API group of the InferencePools (default: whichever is installed)",
    )
    group.add_argument(
        "--pod-selector",
        metavar="KEY=VALUE[,KEY=VALUE...]",
        default=None,
        help="a pool without an InferencePool object",
    )
    group.add_argument(
        "--target-ports", metavar="PORT[,PORT...]", default=None, help="ports of the pool that --pod-selector describes"
    )
    group.add_argument(
        "--remote-scrape-interval",
        type=duration,
        default=500_000_000,
        metavar="DURATION",
        help="how often endpoints on other nodes are read (default 500ms; more pods than a few dozen: make it longer)",
    )
    group.add_argument(
        "--ip-family",
        choices=["primary", "ipv4", "ipv6"],
        default="primary",
        help="which pod IP to use in a dual-stack pod",
    )
    group.add_argument(
        "--kubelet-socket",
        type=Path,
        default=None,
        metavar="PATH",
        help="Pods API socket (default: /var/lib/kubelet/pods-api/pods-api.sock)",
    )
    group.add_argument(
        "--kubeconfig",
        type=Path,
        default=None,
        metavar="FILE",
        help="default: in-cluster, then $KUBECONFIG, then ~/.kube/config",
    )
    group.add_argument(
        "--model-server-scheme", choices=["http", "https"], default="http", help="scheme of the metrics page"
    )
    group.add_argument("--model-server-path", metavar="PATH", default="/metrics", help="path of the metrics page")
    group.add_argument(
        "--model-server-port",
        type=int,
        metavar="PORT",
        default=None,
        help="port of the metrics page (default: the endpoint's)",
    )
    group.add_argument(
        "--write-status",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write the conditions of InferenceModels (one agent does, elected by a Lease)",
    )
    group.add_argument(
        "--lease-namespace", metavar="NS", default=None, help="default: $POD_NAMESPACE, else zerohop-system"
    )


def from_arguments(args: argparse.Namespace) -> DiscoverySettings:
    """The settings that the flags of `add_arguments` describe.

    Raises: ConfigError naming the flag.
    """
    namespaces = tuple(name.strip() for name in args.namespaces.split(",") if name.strip())
    for name in namespaces:
        if not _OBJECT_NAME.match(name):
            raise ConfigError(f"--namespaces: {name!r} is not a namespace name")
    node_name = args.node_name if args.node_name is not None else os.environ.get("NODE_NAME", "")
    if args.discovery != "off" and args.scope == "node" and not node_name:
        raise ConfigError(
            "--discovery: this node's name is unknown; pass --node-name, or set NODE_NAME from spec.nodeName"
        )
    if args.discovery == "kubelet" and not node_name:
        raise ConfigError("--discovery kubelet: this node's name is unknown; pass --node-name, or set NODE_NAME")
    if args.model_server_port is not None and not 1 <= args.model_server_port <= 65535:
        raise ConfigError(f"--model-server-port: {args.model_server_port} is not a port (1 to 65535)")
    pod_namespace = os.environ.get("POD_NAMESPACE", "")
    return DiscoverySettings(
        source=args.discovery,
        scope=args.scope,
        node_name=node_name,
        namespaces=namespaces,
        pools=tuple(_pool_name(text) for text in args.pool),
        pool_group=args.pool_group,
        static_pool=_static_pool(args, namespaces),
        kubelet_socket=args.kubelet_socket,
        kubeconfig=args.kubeconfig,
        remote_scrape_interval_ns=args.remote_scrape_interval,
        ip_family=args.ip_family,
        metrics_scheme=args.model_server_scheme,
        metrics_path=args.model_server_path,
        metrics_port=args.model_server_port,
        lease_namespace=args.lease_namespace or pod_namespace or "zerohop-system",
        write_status=args.write_status,
        identity=f"{os.environ.get('POD_NAME') or os.uname().nodename}_{os.getpid()}",
    )


def _pool_name(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not slash or not _OBJECT_NAME.match(namespace) or not _OBJECT_NAME.match(name):
        raise ConfigError(f"--pool: {text!r} is not NAMESPACE/NAME, for example --pool default/llama")
    return namespace, name


def _static_pool(args: argparse.Namespace, namespaces: tuple[str, ...]) -> StaticPool | None:
    if args.pod_selector is None and args.target_ports is None:
        return None
    if args.pod_selector is None or args.target_ports is None:
        missing = "--pod-selector" if args.pod_selector is None else "--target-ports"
        raise ConfigError(f"{missing} is missing: --pod-selector and --target-ports describe one pool together")
    labels = []
    for term in args.pod_selector.split(","):
        match = _LABEL_TERM.match(term.strip())
        if match is None:
            raise ConfigError(f"--pod-selector: {term!r} is not KEY=VALUE")
        labels.append((match[1], match[2]))
    if len(args.pool) > 1:
        raise ConfigError("--pod-selector describes one pool; give --pool at most once with it")
    if args.pool:
        namespace, name = _pool_name(args.pool[0])
    else:
        namespace, name = (namespaces[0] if len(namespaces) == 1 else ""), "static"
    return StaticPool(namespace, name, tuple(labels), _target_ports(args.target_ports))


def _target_ports(text: str) -> tuple[int, ...]:
    ports = []
    for part in text.split(","):
        if not part.strip().isdecimal() or not 1 <= int(part) <= 65535:
            raise ConfigError(f"--target-ports: {part!r} is not a port (1 to 65535)")
        ports.append(int(part))
    if len(set(ports)) != len(ports):
        raise ConfigError("--target-ports: a port is named twice")
    if len(ports) > MOST_TARGET_PORTS:
        raise ConfigError(f"--target-ports: a pool has at most {MOST_TARGET_PORTS} ports")
    return tuple(ports)

"""The flags of discovery, and the settings that they describe."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from zerohop_agent.discovery.settings import DiscoverySettings, StaticPool
from zerohop_process.errors import ConfigError
from zerohop_process.units import duration

#: An InferencePool holds at most 8 target ports.
MOST_TARGET_PORTS = 8
_LABEL_TERM = re.compile(r"^([A-Za-z0-9./_-]+)=([A-Za-z0-9._-]*)$")
_OBJECT_NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the discovery flags to the agent's parser; `from_arguments` reads them."""
    group = parser.add_argument_group("Kubernetes discovery")
    _add_sources(group)
    _add_pools(group)
    _add_endpoints(group)
    _add_connections(group)
    _add_metrics_page(group)
    _add_status(group)


def _add_sources(group: argparse._ArgumentGroup) -> None:
    """Where pods come from."""
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


def _add_pools(group: argparse._ArgumentGroup) -> None:
    """Which pools are served: objects of the API server, or one that flags describe."""
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


def _add_endpoints(group: argparse._ArgumentGroup) -> None:
    """What is made of a pod."""
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


def _add_connections(group: argparse._ArgumentGroup) -> None:
    """How the kubelet and the API server are reached."""
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


def _add_metrics_page(group: argparse._ArgumentGroup) -> None:
    """Where the metrics page of a found model server is."""
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


def _add_status(group: argparse._ArgumentGroup) -> None:
    """What is written to the API server, and by whom."""
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
    namespaces = _namespaces(args.namespaces)
    node_name = args.node_name if args.node_name is not None else os.environ.get("NODE_NAME", "")
    _check_node_name(args, node_name)
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


def _namespaces(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if not _OBJECT_NAME.match(name):
            raise ConfigError(f"--namespaces: {name!r} is not a namespace name")
    return names


def _check_node_name(args: argparse.Namespace, node_name: str) -> None:
    if args.discovery != "off" and args.scope == "node" and not node_name:
        raise ConfigError(
            "--discovery: this node's name is unknown; pass --node-name, or set NODE_NAME from spec.nodeName"
        )
    if args.discovery == "kubelet" and not node_name:
        raise ConfigError("--discovery kubelet: this node's name is unknown; pass --node-name, or set NODE_NAME")


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

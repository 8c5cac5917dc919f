"""Whether this node's pods come from the kubelet: the best source, where there is one that answers."""

from __future__ import annotations

from pathlib import Path

from zerohop_agent.discovery.settings import KUBELET_PODS_SOCKETS, DiscoverySettings, find_pods_socket
from zerohop_process import log
from zerohop_process.errors import ConfigError
from zerohop_process.log import event

_log = log.get("discovery")


async def pods_socket(settings: DiscoverySettings) -> Path | None:
    """The Pods API socket to follow; None where all pods come from the API server.

    With `auto` the kubelet is asked once: a socket where nobody answers (the feature was switched off, the socket is
    another user's) must not keep pods away.

    Raises: ConfigError when the kubelet was asked for and there is no socket.
    """
    # Without a name for this node the kubelet's pods cannot be told from the others.
    if settings.source not in ("auto", "kubelet") or not settings.node_name:
        return None
    asked = settings.kubelet_socket or KUBELET_PODS_SOCKETS[0]
    why = f"there is no socket {asked}; mount its directory (the Pods API is on by default from Kubernetes 1.37)"
    forbidden = False
    try:
        socket = find_pods_socket(settings.kubelet_socket)
    except PermissionError:
        socket, forbidden = None, True
        why = f"this user may not look for {asked}; run the agent as user 0"
    if settings.source == "kubelet":
        if socket is None:
            raise ConfigError(f"--discovery kubelet: {why}, or use --discovery api")
        return socket
    if forbidden:
        event(_log, "warning", f"{why}. Pods come from the API server")
    if socket is None or settings.needs_no_server:
        return socket
    # Imported here: grpc is 20 MB that only this source needs.
    from zerohop_agent.discovery.kubelet import why_unusable

    trouble = await why_unusable(socket)
    if trouble is None:
        return socket
    event(_log, "warning", f"the kubelet's Pods API cannot be used: {trouble}. Pods come from the API server")
    return None

"""Where this model server can be reached, found from inside it: how the agent knows whose cell it reads.

The agent knows an endpoint by its address. A server process knows its addresses and the ports it has bound, but not
under
which of them it was announced, so the cell names all of them, and the network namespace, which tells whether a
loopback address means this machine. `ZEROHOP_ENDPOINT=HOST:PORT[,HOST:PORT]` names the endpoint outright, where
guessing fails
(a port mapped by a container runtime, a proxy in front).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["bound_ports", "network_namespace", "own_addresses", "whereabouts"]

ENDPOINT_VARIABLE = "ZEROHOP_ENDPOINT"
_PORT_LIMIT = 32


def whereabouts(
    environment: Mapping[str, str] = os.environ, arguments: Sequence[str] | None = None
) -> dict[str, object]:
    """Return `endpoints` (as named by the user), `hosts`, `ports` and `netns` of this process. Never raises."""
    named = [part.strip() for part in environment.get(ENDPOINT_VARIABLE, "").split(",") if part.strip()]
    ports = bound_ports()
    asked = port_argument(sys.argv if arguments is None else arguments)
    if asked is not None and asked not in ports:
        ports.append(asked)
    return {"endpoints": named, "hosts": own_addresses(), "ports": ports, "netns": network_namespace()}


def bound_ports() -> list[int]:
    """Return the TCP ports that this process has bound and not connected, in order; servers bind before engines
    start."""
    ports = set()
    try:
        entries = list(Path("/proc/self/fd").iterdir())
    except OSError:
        return []
    for entry in entries:
        port = _bound_port(entry)
        if port is not None:
            ports.add(port)
    return sorted(ports)[:_PORT_LIMIT]


def _bound_port(entry: Path) -> int | None:
    try:
        if not str(entry.readlink()).startswith("socket:"):
            return None
        copy = socket.socket(fileno=os.dup(int(entry.name)))
    except OSError:
        return None
    with copy:
        try:
            if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.type != socket.SOCK_STREAM:
                return None
            port = copy.getsockname()[1]
        except OSError:
            return None
        try:
            copy.getpeername()
        except OSError:
            return int(port) or None
        return None


def port_argument(arguments: Sequence[str]) -> int | None:
    """Return the number after `--port` on a command line."""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name != "--port":
            continue
        text = value if equals else (arguments[index + 1] if index + 1 < len(arguments) else "")
        if text.isdigit() and 0 < int(text) < 65536:
            return int(text)
    return None


def own_addresses() -> list[str]:
    """Return the addresses that other hosts reach this one by: its host name's, and those of the default routes."""
    found: dict[str, None] = {}
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            # Connecting a datagram socket sends nothing; the kernel only chooses the source address.
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                found[probe.getsockname()[0]] = None
        except OSError:
            pass
    try:
        for *_, name in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            found[str(name[0]).partition("%")[0]] = None
    except OSError:
        pass
    return [address for address in found if not address.startswith("127.") and address != "::1"]


def network_namespace() -> int:
    """Return the inode of this process's network namespace; 0 where there is none to read."""
    try:
        return Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return 0

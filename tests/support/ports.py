"""Free TCP ports, for programs that must be told a number."""

from __future__ import annotations

import socket


def free_port(*hosts: str) -> int:
    """A port that is free on 127.0.0.1 and on each of `hosts` (one number for all of them)."""
    for _ in range(50):
        held = []
        try:
            port = 0
            for host in ("127.0.0.1", *hosts):
                server = socket.socket()
                held.append(server)
                server.bind((host, port))
                port = server.getsockname()[1]
            return port
        except OSError:
            continue
        finally:
            for server in held:
                server.close()
    raise RuntimeError("no port is free on every address")

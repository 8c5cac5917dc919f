"""A gRPC channel to a Unix socket of the kubelet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio

#: A node holds up to 250 pods and a pod may take 100 kB or more; grpc's own limit of 4 MB is too low for a list.
_MAX_MESSAGE_BYTES = 64 << 20


class KubeletError(Exception):
    """The socket did not answer as expected; `code` is the gRPC status name, such as UNAVAILABLE."""

    def __init__(self, socket: Path, code: str, detail: str) -> None:
        super().__init__(f"{socket}: {code}: {detail}")
        self.socket = socket
        self.code = code
        self.detail = detail


def open_channel(socket: Path) -> grpc.aio.Channel:
    """A channel that connects on the first call, and again by itself after the kubelet has replaced the socket."""
    return grpc.aio.insecure_channel(
        f"unix://{socket.absolute()}",
        options=[
            ("grpc.default_authority", "localhost"),
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            # Two clients of one path must not share a connection: closing one would cut the other.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 5000),
        ],
    )


def kubelet_error(socket: Path, error: grpc.aio.AioRpcError) -> KubeletError:
    """The same failure as a `KubeletError` with one line of text."""
    code: Any = error.code()
    return KubeletError(socket, code.name, (error.details() or "").splitlines()[0] if error.details() else "")

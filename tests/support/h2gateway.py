"""A gateway reduced to its ext-proc connection: libnghttp2 over a blocking socket, fast enough to load a picker.

It behaves as Envoy does: headers, body and end of body as three messages of a stream, and a reset as soon as it has
what it needs.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import ngh2

from zerohop_picker._pb import extproc_pb2 as pb

HEADERS: list[ngh2.Header] = [
    (b":method", b"POST"), (b":scheme", b"http"),
    (b":path", b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"), (b":authority", b"picker"),
    (b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"x-envoy-internal", b"true"),
    (b"x-forwarded-for", b"10.0.0.1"), (b"x-envoy-expected-rq-timeout-ms", b"200"),
]  # fmt: skip
_CLIENT_HEADERS = {
    ":authority": "models.example", ":path": "/v1/chat/completions", ":method": "POST", ":scheme": "http",
    "content-type": "application/json", "user-agent": "OpenAI/Python 1.50.0", "accept": "application/json",
    "accept-encoding": "gzip, deflate", "authorization": "Bearer sk-0123456789abcdef0123456789abcdef",
    "x-forwarded-proto": "http", "x-request-id": "0c5b1f1e-3d2c-4f0a-8a5d-0123456789ab",
}  # fmt: skip


def grpc_frame(message: pb.ProcessingRequest) -> bytes:
    """Return a message with its gRPC prefix."""
    data = message.SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + data


def chat(prompt_bytes: int, *, response: bool = False, chunk_bytes: int = 64_000) -> list[bytes]:
    """Return the framed messages of a chat request as Envoy sends them under FULL_DUPLEX_STREAMED."""
    head = pb.ProcessingRequest()
    body = b'{"model":"m","messages":[{"role":"user","content":"' + b"word " * (prompt_bytes // 5) + b'"}]}'
    for name, value in {**_CLIENT_HEADERS, "content-length": str(len(body))}.items():
        header = head.request_headers.headers.headers.add()
        header.key, header.raw_value = name, value.encode()
    head.protocol_config.request_body_mode = pb.FULL_DUPLEX_STREAMED
    head.protocol_config.response_body_mode = pb.FULL_DUPLEX_STREAMED if response else pb.NONE
    messages = [head]
    for start in range(0, len(body), chunk_bytes):
        message = pb.ProcessingRequest()
        message.request_body.body = body[start : start + chunk_bytes]
        messages.append(message)
    end = pb.ProcessingRequest()
    end.request_body.end_of_stream = True
    return [grpc_frame(message) for message in (*messages, end)]


def headers_only() -> list[bytes]:
    """Return the one framed message of a request in header-only mode."""
    message = pb.ProcessingRequest()
    for name, value in _CLIENT_HEADERS.items():
        header = message.request_headers.headers.headers.add()
        header.key, header.raw_value = name, value.encode()
    message.protocol_config.SetInParent()
    return [grpc_frame(message)]


class H2Gateway:
    """One connection to a picker's Unix socket."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        huge = (1 << 40, 1 << 40)
        self.h2 = ngh2.Connection(
            ngh2.Role.CLIENT,
            ngh2.Configuration(
                stream_reset_rate_limit=huge, glitch_rate_limit=huge, peer_max_concurrent_streams=1 << 20
            ),
        )
        self.h2.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: 1 << 28})
        self.h2.set_local_window_size(1 << 30)
        self.received: dict[int, bytearray] = {}
        self.ended: set[int] = set()
        self.closed = False

    def open(self, frames: Sequence[bytes] = ()) -> int:
        """Open a stream and queue `frames` on it; return its id."""
        stream_id = self.h2.send_request(HEADERS)
        self.received[stream_id] = bytearray()
        for frame in frames:
            self.h2.send_data(stream_id, frame)
        return stream_id

    def send(self, stream_id: int, *frames: bytes) -> None:
        for frame in frames:
            self.h2.send_data(stream_id, frame)

    def reset(self, stream_id: int) -> None:
        """Do as Envoy does when it needs no more."""
        self.received.pop(stream_id, None)
        if stream_id not in self.ended:
            self.h2.reset_stream(stream_id, ngh2.ErrorCode.CANCEL)

    def flush(self) -> None:
        self._socket.sendall(self.h2.data_to_send())

    def pump(self) -> None:
        """Send what is queued and take one read's worth of answers."""
        self.flush()
        data = self._socket.recv(1 << 20)
        if not data:
            self.closed = True
            return
        self.h2.receive_data(data)
        for event in self.h2.events():
            if isinstance(event, ngh2.DataReceived):
                buffer = self.received.get(event.stream_id)
                if buffer is not None:
                    buffer += event.data
            elif isinstance(event, ngh2.TrailersReceived | ngh2.StreamReset | ngh2.StreamClosed):
                self.ended.add(event.stream_id)

    def replies(self, stream_id: int) -> int:
        """Return how many whole messages have come on a stream."""
        buffer, at, count = self.received.get(stream_id, b""), 0, 0
        while len(buffer) - at >= 5:
            at += 5 + int.from_bytes(buffer[at + 1 : at + 5], "big")
            if at > len(buffer):
                break
            count += 1
        return count

    def close(self) -> None:
        self._socket.close()

    def exchange(self, frames: Sequence[bytes], replies: int, *, count: int, concurrency: int) -> float:
        """Make `count` exchanges, `concurrency` at a time, each reset after `replies`; return the seconds taken."""
        began, left = time.perf_counter(), count
        open_ids: set[int] = set()
        while left or open_ids:
            while left and len(open_ids) < concurrency:
                open_ids.add(self.open(frames))
                left -= 1
            self.pump()
            for stream_id in [one for one in open_ids if self.replies(one) >= replies or one in self.ended]:
                open_ids.discard(stream_id)
                self.reset(stream_id)
                self.ended.discard(stream_id)
        self.flush()
        return time.perf_counter() - began


def cpu_seconds(pid: int) -> float:
    """Return the user and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

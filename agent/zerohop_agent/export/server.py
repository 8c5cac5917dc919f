"""Serves the metrics page from a thread of its own, so that a slow reader of it never holds up a publish."""

from __future__ import annotations

import contextlib
import socket
import threading
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from zerohop_agent.export.page import SnapshotPage
from zerohop_process.address import Address
from zerohop_process.errors import ConfigError
from zerohop_snapshot.pickercell import PeerCells
from zerohop_snapshot.reader import SnapshotReader

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: A client that sends or takes nothing for so long is dropped.
_IDLE_S = 10.0


class MetricsServer:
    """`GET /metrics` and `GET /healthz`. One page is rendered at a time, whoever asks.

    `healthy()` is called from the server's threads.

    Raises: ConfigError when the address cannot be used.
    """

    def __init__(self, where: Address, shm_dir: Path, registry: CollectorRegistry, healthy: Callable[[], bool]) -> None:
        self._reader = SnapshotReader(shm_dir)
        self._workers = PeerCells(shm_dir)
        self._snapshot_page = SnapshotPage()
        self._registry = registry
        self._healthy = healthy
        self._lock = threading.Lock()
        try:
            self._server = _server_class(where)((where.host, where.port), self._handler_class())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"--metrics-address: cannot listen on {where} ({reason}); choose another, or 'off'"
            ) from None
        wildcard = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        self._knock_host = wildcard.get(where.host, where.host)
        self.address = Address(where.host, int(self._server.server_address[1]))
        # The thread wakes for requests alone; `close` knocks at the door.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(3600,), name="metrics", daemon=True)

    def register(self, collector: Collector) -> None:
        """Add the metrics of a part that started later."""
        self._registry.register(collector)

    def start(self) -> None:
        """Answer requests until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering. Requests in progress are cut off with the process."""
        if self._thread.is_alive():
            stopping = threading.Thread(target=self._server.shutdown, name="metrics-stop", daemon=True)
            stopping.start()
            while stopping.is_alive():
                with contextlib.suppress(OSError):
                    socket.create_connection((self._knock_host, self.address.port), timeout=1.0).close()
                stopping.join(0.01)
        self._server.server_close()

    def page(self) -> bytes:
        """The whole page: what the snapshot says, then what the agent says of itself."""
        with self._lock:
            snapshot = self._reader.read()
            text = ""
            if snapshot is not None:
                size = self._reader.path.stat().st_size
                text = self._snapshot_page.render(snapshot, size, workers=self._workers.live())
            return text.encode() + generate_latest(self._registry)

    def _handler_class(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(_Handler):
            def do_GET(self) -> None:
                path = urlsplit(self.path).path
                if path == "/metrics":
                    self.answer(200, server.page(), _CONTENT_TYPE)
                elif path == "/healthz":
                    healthy = server._healthy()
                    self.answer(200 if healthy else 503, b"ok\n" if healthy else b"not publishing\n", "text/plain")
                else:
                    self.answer(404, b"try /metrics or /healthz\n", "text/plain")

            def do_HEAD(self) -> None:
                self.do_GET()

        return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    #: Names neither Python's version nor ours to whoever asks.
    server_version = "zerohop"
    sys_version = ""

    def answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if len(body) > 1024 and "gzip" in self.headers.get("Accept-Encoding", ""):
            # zlib works without the interpreter's lock, so this is not time taken from the publisher.
            packer = zlib.compressobj(1, wbits=31)
            body = packer.compress(body) + packer.flush()
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """One line per scrape would say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away while it was answered is no event."""


class _Server6(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        # `[::]` means every address of both families, whatever the host's bindv6only says.
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def _server_class(where: Address) -> type[_Server]:
    return _Server6 if ":" in where.host else _Server

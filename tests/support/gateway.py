"""A real Envoy from one of the shipped configurations, real HTTP backends behind it, and a client in front of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from support.processes import Process, Processes
from support.waiting import eventually, eventually_async
from zerohop_console.demo.envoy import envoy_binary

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests" / "envoy"
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


class Envoy:
    """A running Envoy."""

    def __init__(self, process: Process, admin: str) -> None:
        self.process = process
        self._admin = admin
        eventually(lambda: self.admin("/ready").strip() == "LIVE", 20, what="Envoy live")
        listeners = json.loads(self.admin("/listeners?format=json"))["listener_statuses"]
        where = listeners[0]["local_address"]["socket_address"]
        self.host, self.port = where["address"], int(where["port_value"])

    def admin(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://{self._admin}{path}", timeout=5) as reply:
                return str(reply.read(), "utf-8")
        except urllib.error.HTTPError as error:
            return str(error.read(), "utf-8")

    def stat(self, name: str) -> int:
        """Return the sum of all counters and gauges whose names end with `name`."""
        lines = self.admin(f"/stats?filter={name}$").splitlines()
        return sum(int(line.rpartition(": ")[2]) for line in lines if line)

    def healthy(self, cluster: str) -> int:
        """Return how many endpoints of `cluster` pass their health checks."""
        return self.stat(f"cluster.{cluster}.membership_healthy")


def start_envoy(
    run: Processes, folder: Path, manifest: str, *, picker: Sequence[str | tuple[str, int]],
    servers: Sequence[tuple[str, int]], change: Callable[[dict[str, Any]], None] | None = None, concurrency: int = 1,
) -> Envoy:  # fmt: skip
    """Start Envoy by `manifests/envoy/MANIFEST.yaml` with these addresses in place of those it names.

    `picker` holds socket paths or (host, port) pairs; `change` may edit the configuration further.
    """
    config: dict[str, Any] = yaml.safe_load((MANIFESTS / f"{manifest}.yaml").read_text())
    resources = config["static_resources"]
    config["admin"]["address"]["socket_address"]["port_value"] = 0
    resources["listeners"][0]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    _place(clusters["model-servers"], [_socket(*server) for server in servers])
    _place(
        clusters["picker"],
        [{"pipe": {"path": where}} if isinstance(where, str) else _socket(*where) for where in picker],
    )
    if change is not None:
        change(config)
    path = folder / f"{manifest}.json"
    path.write_text(json.dumps(config))
    admin = folder / f"{manifest}.admin"
    process = run.start(
        envoy_binary(), "-c", path, "--concurrency", str(concurrency), "--disable-hot-restart", "-l", "warning",
        "--admin-address-path", admin,
    )  # fmt: skip
    eventually(lambda: admin.exists() and admin.read_text(), 20, what="Envoy's admin address")
    return Envoy(process, eventually(lambda: admin.read_text().strip(), 5))


def listener_ports(envoy: Envoy) -> dict[str, int]:
    """Return the port of every listener by its name."""
    statuses = json.loads(envoy.admin("/listeners?format=json"))["listener_statuses"]
    return {status["name"]: status["local_address"]["socket_address"]["port_value"] for status in statuses}


def ext_proc_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the ext_proc filter of a configuration."""
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    found: dict[str, Any] = next(f for f in manager["http_filters"] if f["name"].endswith("ext_proc"))["typed_config"]
    return found


def route_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the one route of a configuration."""
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    found: dict[str, Any] = manager["route_config"]["virtual_hosts"][0]["routes"][0]
    return found


def cluster_of(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a cluster of a configuration."""
    found: dict[str, Any] = next(c for c in config["static_resources"]["clusters"] if c["name"] == name)
    return found


def _place(cluster: dict[str, Any], addresses: list[dict[str, Any]]) -> None:
    cluster["load_assignment"]["endpoints"] = [
        {"lb_endpoints": [{"endpoint": {"address": address}} for address in addresses]}
    ]


def _socket(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


@dataclass(slots=True)
class Received:
    """One request as a backend saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Reply:
    """One answer as the client saw it; `chunks` as they arrived."""

    status: int
    headers: dict[str, str]
    chunks: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def server(self) -> str:
        """Which backend answered."""
        return self.headers.get("x-backend", "")


class Backend:
    """A small HTTP/1.1 server. POST /sse streams `events`, each when `step` lets it; anything else answers at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[Received] = []
        self.events: list[bytes] = []
        self.step: asyncio.Semaphore | None = None
        self.healthy = True
        self.address = ("127.0.0.1", 0)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.address[1], limit=2**20)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        """Die: refuse connections and cut the open ones."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        self._server = None
        await eventually_async(lambda: not self._writers)

    @property
    def served(self) -> list[Received]:
        """Requests other than health checks."""
        return [request for request in self.requests if request.path != "/health"]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                request = await _read_request(reader)
                self.requests.append(request)
                if request.path == "/sse":
                    await self._stream(writer)
                else:
                    status = 200 if self.healthy or request.path != "/health" else 503
                    body = json.dumps({"server": self.name, "bytes": len(request.body)}).encode()
                    writer.write(_head(status, self.name, f"content-length: {len(body)}") + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_head(200, self.name, "content-type: text/event-stream\r\ntransfer-encoding: chunked"))
        await writer.drain()
        for event in self.events:
            if self.step is not None:
                await self.step.acquire()
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
        writer.write(b"0\r\n\r\n")


@contextlib.asynccontextmanager
async def backends(count: int) -> AsyncIterator[list[Backend]]:
    """Run `count` backends."""
    started = [Backend(f"server-{index}") for index in range(count)]
    for backend in started:
        await backend.start()
    try:
        yield started
    finally:
        for backend in started:
            await backend.stop()


class Client:
    """One kept-alive HTTP/1.1 connection to a gateway."""

    def __init__(self, envoy: Envoy) -> None:
        self._envoy = envoy
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        self._streams = await asyncio.open_connection(self._envoy.host, self._envoy.port, limit=2**24)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._streams is not None:
            self._streams[1].close()

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request and return its whole answer."""
        await self.send("POST", path, body, headers)
        return await self.receive()

    async def get(self, path: str) -> Reply:
        await self.send("GET", path, None, None)
        return await self.receive()

    async def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None = None) -> None:
        assert self._streams is not None
        fields = {"host": "models.example", "content-type": "application/json", **(headers or {})}
        if body is not None:
            fields["content-length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._streams[1].write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + (body or b""))
        await self._streams[1].drain()

    async def head(self) -> Reply:
        """Return status and headers; the chunks are still to come."""
        assert self._streams is not None
        lines = (await self._streams[0].readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return Reply(int(lines[0].split()[1]), headers)

    async def chunk(self) -> bytes:
        """Return the next chunk of a chunked answer, b"" at its end."""
        assert self._streams is not None
        size = int(await self._streams[0].readuntil(b"\r\n"), 16)
        data = await self._streams[0].readexactly(size + 2)
        return data[:-2]

    async def receive(self) -> Reply:
        reply = await self.head()
        assert self._streams is not None
        if "content-length" in reply.headers:
            reply.chunks.append(await self._streams[0].readexactly(int(reply.headers["content-length"])))
            return reply
        while chunk := await self.chunk():
            reply.chunks.append(chunk)
        return reply


async def ready(envoy: Envoy, *, workers: int, servers: int) -> None:
    """Wait until Envoy has seen every worker and server healthy."""
    await eventually_async(
        lambda: envoy.healthy("picker") == workers and envoy.healthy("model-servers") == servers,
        15, what=f"{workers} workers and {servers} servers healthy",
    )  # fmt: skip


async def _read_request(reader: asyncio.StreamReader) -> Received:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    if headers.get("transfer-encoding") == "chunked":
        parts = []
        while size := int(await reader.readuntil(b"\r\n"), 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
        await reader.readexactly(2)
        return Received(method, path, headers, b"".join(parts))
    return Received(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def _head(status: int, name: str, more: str) -> bytes:
    return f"HTTP/1.1 {status} x\r\nx-backend: {name}\r\n{more}\r\n\r\n".encode()

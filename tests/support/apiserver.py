"""A small Kubernetes API server that speaks real HTTP, with the bad days of a real one.

    async with ApiServer() as server:
        server.install(POOLS_V1)
        server.put(pod("vllm-0", node="node-a", ip="10.1.0.5", labels={"app": "vllm"}))
        Discovery(settings, apply, client=ApiClient(load_config(server.kubeconfig(tmp_path))))

It lists (pages, selectors), watches (bookmarks, streaming lists, versions that expire), discovers (aggregated and
not), creates, replaces with conflict detection, has the status subresource and access reviews. Trouble is made with
`fail`, `expire`, `cut_watches`, `mute`, `empty_watches`, `forbid`, `require_token`, `stop` and `start`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import ssl
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from zerohop_agent.discovery.resources import PODS, Resource, Role

LEASES = Resource(Role.PODS, "coordination.k8s.io", "v1", "leases", "Lease", built_in=True)


def pod(
    name: str,
    *,
    ip: str | None = "10.1.0.1",
    node: str = "node-a",
    namespace: str = "default",
    uid: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    ready: bool = True,
    deleting: bool = False,
    phase: str = "Running",
    ips: tuple[str, ...] = (),
    created: str = "2026-01-01T00:00:00Z",
) -> dict[str, Any]:
    """A pod as the API server has it."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{namespace}-{name}",
        "labels": dict(labels or {"app": "vllm"}),
        "annotations": dict(annotations or {}),
        "creationTimestamp": created,
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    status: dict[str, Any] = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
    }
    if ip is not None:
        status |= {"podIP": ip, "podIPs": [{"ip": each} for each in ips or (ip,)]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [{"name": "server"}]},
        "status": status,
    }


def pool(
    name: str, *, ports: tuple[int, ...] = (8000,), labels: Mapping[str, str] | None = None, namespace: str = "default"
) -> dict[str, Any]:
    """An InferencePool v1."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": namespace, "uid": f"pool-{namespace}-{name}"},
        "spec": {
            "selector": {"matchLabels": dict(labels or {"app": "vllm"})},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "zerohop", "port": {"number": 9002}},
        },
    }


def custom(
    resource: Resource,
    name: str,
    spec: Any,
    *,
    namespace: str = "default",
    uid: str = "",
    created: str = "2026-01-01T00:00:00Z",
) -> dict[str, Any]:
    """An object of any custom resource."""
    return {
        "apiVersion": f"{resource.group}/{resource.version}",
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"{resource.plural}-{namespace}-{name}",
            "creationTimestamp": created,
            "generation": 1,
        },
        "spec": spec,
    }


@dataclass(frozen=True)
class Seen:
    """One request that arrived. `verb` is get, list, watch, create, update, discovery or review."""

    verb: str
    method: str
    path: str
    params: Mapping[str, str]
    token: str | None


@dataclass
class _Fault:
    matches: Callable[[Seen], bool]
    status: int
    reason: str
    headers: Mapping[str, str]
    left: int


@dataclass
class _Change:
    version: int
    kind: str
    resource: Resource
    body: dict[str, Any]


@dataclass(eq=False)
class _Watch:
    writer: asyncio.StreamWriter
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    cut: bool = False


class ApiServer:
    """One API server. Change its objects from the test's own loop."""

    def __init__(
        self, *, streaming_lists: bool = True, aggregated: bool = True, tls: ssl.SSLContext | None = None
    ) -> None:
        self.streaming_lists = streaming_lists
        self.aggregated = aggregated
        self.requests: list[Seen] = []
        self.muted = False
        self.token: str | None = None
        self.empty_watches = 0
        self.bookmarks_immediately = True
        self._tls = tls
        self._server: asyncio.Server | None = None
        self.port = 0
        self._version = itertools.count(1000)
        self.version = 1000
        self._oldest = 0
        self._installed: list[Resource] = [PODS, LEASES]
        self._objects: dict[tuple[Resource, str, str], dict[str, Any]] = {}
        self._changes: list[_Change] = []
        self._watches: set[_Watch] = set()
        self._faults: list[_Fault] = []
        self._forbidden: set[tuple[str, str, str | None, str | None]] = set()
        self._expire_as_event = False
        self._connections: set[asyncio.Task[None]] = set()

    # Running.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens, on the port of the last time if there was one."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Goes away: connections are reset and new ones refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def url(self) -> str:
        """Base address."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def kubeconfig(self, directory: Path, token: str | None = None) -> Path:
        """Writes a kubeconfig for this server; returns its path."""
        user = {"token": token} if token else {}
        path = directory / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "c", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
                    "users": [{"name": "u", "user": user}],
                    "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
                }
            )
        )
        return path

    # Objects.

    def install(self, *resources: Resource) -> None:
        """Installs CRDs."""
        self._installed += [resource for resource in resources if resource not in self._installed]

    def uninstall(self, resource: Resource) -> None:
        """Removes a CRD and its objects; its watches end."""
        self._installed.remove(resource)
        for key in [key for key in self._objects if key[0] == resource]:
            del self._objects[key]
        self.cut_watches()

    def put(self, body: dict[str, Any]) -> dict[str, Any]:
        """Creates or replaces an object, whole; watches see it."""
        resource, key = self._resource_of(body), None
        metadata = body["metadata"]
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        stored: dict[str, Any] = json.loads(json.dumps(body))
        self.version = next(self._version)
        stored["metadata"]["resourceVersion"] = str(self.version)
        stored["metadata"].setdefault("uid", f"uid-{self.version}")
        kind = "MODIFIED" if key in self._objects else "ADDED"
        if kind == "MODIFIED" and self._objects[key]["metadata"]["uid"] != stored["metadata"]["uid"]:
            self.remove(self._objects[key])
            kind = "ADDED"
        self._objects[key] = stored
        self._note(_Change(self.version, kind, resource, stored))
        return stored

    def remove(self, body: Mapping[str, Any]) -> None:
        """Deletes an object; watches see it."""
        metadata = body["metadata"]
        resource = self._resource_of(body)
        stored = self._objects.pop((resource, metadata.get("namespace", ""), metadata["name"]))
        self.version = next(self._version)
        last = json.loads(json.dumps(stored))
        last["metadata"]["resourceVersion"] = str(self.version)
        self._note(_Change(self.version, "DELETED", resource, last))

    def get(self, resource: Resource, name: str, namespace: str = "default") -> dict[str, Any]:
        """The object as stored."""
        return self._objects[(resource, namespace, name)]

    def count(self, verb: str, resource: Resource | None = None) -> int:
        """How many requests of `verb` came (for `resource`)."""
        return sum(
            1
            for seen in self.requests
            if seen.verb == verb
            and (resource is None or (f"/{resource.plural}" in seen.path and resource.base_path in seen.path))
        )

    # Trouble.

    def fail(
        self,
        status: int,
        *,
        reason: str = "InternalError",
        times: int = 1,
        matches: Callable[[Seen], bool] = lambda seen: seen.verb in ("list", "watch"),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """The next `times` requests that match are answered with `status`."""
        self._faults.append(_Fault(matches, status, reason, headers or {}, times))

    def expire(self, *, as_event: bool = False) -> None:
        """Forgets history: versions older than now give 410, as a status or as an ERROR event in a 200."""
        self._oldest = self.version
        self._expire_as_event = as_event
        self._changes.clear()

    def cut_watches(self) -> None:
        """Ends each open watch in the middle of an event."""
        for watch in list(self._watches):
            watch.cut = True
            watch.wake.set()

    def send_error(self, code: int, reason: str) -> None:
        """Sends an ERROR event into each open watch."""
        body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}
        for watch in self._watches:
            _chunk(watch.writer, json.dumps({"type": "ERROR", "object": body}).encode() + b"\n")

    def forbid(self, verb: str, plural: str, *, group: str | None = None, namespace: str | None = None) -> None:
        """Takes the permission for `verb` on `plural` away, in one group or namespace only where these are given."""
        self._forbidden.add((verb, plural, group, namespace))

    def allow(self, verb: str, plural: str) -> None:
        """Gives it back."""
        self._forbidden = {each for each in self._forbidden if each[:2] != (verb, plural)}

    def _forbids(self, verb: str, plural: str, group: str, namespace: str | None) -> bool:
        return any(
            each[:2] == (verb, plural) and each[2] in (None, group) and each[3] in (None, namespace)
            for each in self._forbidden
        )

    @property
    def open_watches(self) -> int:
        """How many watches are open now."""
        return len(self._watches)

    # Serving.

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._serve(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # asyncio.start_server of Python 3.11 complains about a cancelled handler
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        url = urllib.parse.urlsplit(target)
        params = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        token = headers.get("authorization", "").removeprefix("Bearer ") or None
        route = self._route(url.path)
        verb = _verb(method, url.path, params, route)
        seen = Seen(verb, method, url.path, params, token)
        self.requests.append(seen)
        if self.token is not None and token != self.token:
            return _answer(writer, 401, _status(401, "Unauthorized", "token is not valid"))
        for fault in self._faults:
            if fault.left and fault.matches(seen):
                fault.left -= 1
                return _answer(writer, fault.status, _status(fault.status, fault.reason, "as told"), fault.headers)
        if verb == "discovery":
            return self._discover(writer, url.path, headers.get("accept", ""))
        if verb == "review":
            return self._review(writer, json.loads(body))
        if route is None:
            return _answer(writer, 404, _status(404, "NotFound", f"{url.path} is not there"))
        resource, namespace, name, subresource = route
        if self._forbids(verb, resource.plural, resource.group, namespace):
            message = f'{resource.plural} is forbidden: User "system:serviceaccount:zerohop:agent" cannot {verb}'
            return _answer(writer, 403, _status(403, "Forbidden", message))
        if verb == "watch":
            return await self._watch(writer, resource, namespace, params)
        if verb == "list":
            return self._list(writer, resource, namespace, params)
        return self._object(writer, verb, resource, namespace, name or "", subresource, body)

    def _route(self, path: str) -> tuple[Resource, str | None, str | None, str | None] | None:
        for resource in self._installed:
            if not path.startswith(resource.base_path + "/"):
                continue
            parts = path.removeprefix(resource.base_path + "/").split("/")
            namespace = None
            if parts[0] == "namespaces" and len(parts) > 2:
                namespace, parts = parts[1], parts[2:]
            if parts[0] == resource.plural:
                return resource, namespace, parts[1] if len(parts) > 1 else None, parts[2] if len(parts) > 2 else None
        return None

    def _discover(self, writer: asyncio.StreamWriter, path: str, accept: str) -> bool:
        customs = [resource for resource in self._installed if resource.group]
        groups = sorted({resource.group for resource in customs})
        if path == "/apis" and self.aggregated and "apidiscovery.k8s.io" in accept:
            items = [
                {
                    "metadata": {"name": group},
                    "versions": [
                        {
                            "version": version,
                            "resources": [
                                {"resource": each.plural}
                                for each in customs
                                if (each.group, each.version) == (group, version)
                            ],
                        }
                        for version in sorted({each.version for each in customs if each.group == group})
                    ],
                }
                for group in groups
            ]
            return _answer(writer, 200, {"kind": "APIGroupDiscoveryList", "items": items})
        if path == "/apis":
            versions = {group: sorted({each.version for each in customs if each.group == group}) for group in groups}
            items = [
                {"name": group, "versions": [{"groupVersion": f"{group}/{each}", "version": each} for each in found]}
                for group, found in versions.items()
            ]
            return _answer(writer, 200, {"kind": "APIGroupList", "groups": items})
        names = [{"name": each.plural} for each in customs if each.base_path == path]
        if not names:
            return _answer(writer, 404, _status(404, "NotFound", path))
        return _answer(writer, 200, {"kind": "APIResourceList", "resources": names})

    def _review(self, writer: asyncio.StreamWriter, body: Any) -> bool:
        asked = body["spec"].get("resourceAttributes", {})
        plural = "/".join(part for part in (asked.get("resource"), asked.get("subresource")) if part)
        allowed = not self._forbids(asked.get("verb"), plural, asked.get("group"), asked.get("namespace") or None)
        return _answer(writer, 201, {**body, "status": {"allowed": allowed}})

    def _selected(
        self, resource: Resource, namespace: str | None, params: Mapping[str, str], body: Mapping[str, Any]
    ) -> bool:
        if namespace is not None and body["metadata"].get("namespace") != namespace:
            return False
        wanted, unwanted, node = params.get("fieldSelector", ""), False, body["spec"].get("nodeName")
        if wanted.startswith("spec.nodeName!="):
            unwanted = node == wanted.removeprefix("spec.nodeName!=")
        elif wanted.startswith("spec.nodeName="):
            unwanted = node != wanted.removeprefix("spec.nodeName=")
        if unwanted:
            return False
        labels = body["metadata"].get("labels") or {}
        terms = [term.split("=", 1) for term in params.get("labelSelector", "").split(",") if term]
        return all(labels.get(key) == value for key, value in terms)

    def _list(
        self, writer: asyncio.StreamWriter, resource: Resource, namespace: str | None, params: Mapping[str, str]
    ) -> bool:
        items = [
            body
            for (kind, _, _), body in sorted(self._objects.items(), key=lambda entry: entry[0][1:])
            if kind == resource and self._selected(resource, namespace, params, body)
        ]
        start = int(params.get("continue") or 0)
        limit = int(params.get("limit") or 0)
        metadata: dict[str, Any] = {"resourceVersion": str(self.version)}
        if limit and params.get("resourceVersion") != "0" and start + limit < len(items):
            metadata["continue"] = str(start + limit)
            items = items[start : start + limit]
        else:
            items = items[start:]
        return _answer(writer, 200, {"kind": f"{resource.kind}List", "metadata": metadata, "items": items})

    async def _watch(
        self, writer: asyncio.StreamWriter, resource: Resource, namespace: str | None, params: Mapping[str, str]
    ) -> bool:
        initial = params.get("sendInitialEvents") == "true"
        if initial and not self.streaming_lists:
            message = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            return _answer(writer, 422, _status(422, "Invalid", message))
        since = params.get("resourceVersion", "")
        expired = since not in ("", "0") and int(since) < self._oldest
        gone = _status(410, "Expired", f"too old resource version: {since} ({self._oldest})")
        if expired and not self._expire_as_event:
            return _answer(writer, 410, gone)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        if expired:
            _event(writer, "ERROR", gone)
            return _end(writer)
        if self.empty_watches:
            self.empty_watches -= 1
            return _end(writer)
        sent = self.version
        if initial or since in ("", "0"):
            for (kind, _, _), body in self._objects.items():
                if kind == resource and self._selected(resource, namespace, params, body):
                    _event(writer, "ADDED", body)
            if initial:
                self._bookmark(writer, resource, sent, {"k8s.io/initial-events-end": "true"})
        else:
            sent = int(since)
            if self.bookmarks_immediately and params.get("allowWatchBookmarks") == "true":
                self._bookmark(writer, resource, sent, {})
        watch = _Watch(writer)
        self._watches.add(watch)
        deadline = asyncio.get_running_loop().time() + float(params.get("timeoutSeconds", 3600))
        try:
            return await self._feed(watch, resource, namespace, params, sent, deadline)
        finally:
            self._watches.discard(watch)

    async def _feed(
        self,
        watch: _Watch,
        resource: Resource,
        namespace: str | None,
        params: Mapping[str, str],
        sent: int,
        deadline: float,
    ) -> bool:
        visible = {
            body["metadata"]["uid"]
            for (kind, _, _), body in self._objects.items()
            if kind == resource and self._selected(resource, namespace, params, body)
        }
        while True:
            for change in [change for change in self._changes if change.version > sent]:
                if self.muted:
                    break
                sent = change.version
                if change.resource != resource:
                    continue
                selected = self._selected(resource, namespace, params, change.body)
                uid = change.body["metadata"]["uid"]
                # An object that leaves the selection is deleted as far as this watch can see.
                kind = change.kind if selected else "DELETED" if uid in visible else None
                visible = visible | {uid} if selected else visible - {uid}
                if kind is not None:
                    _event(watch.writer, kind, change.body)
            if watch.cut:
                _chunk(watch.writer, b'{"type":"ADDED","object":{"metadata":{"na')
                await watch.writer.drain()
                return False
            await watch.writer.drain()
            watch.wake.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await watch.wake.wait()
            except TimeoutError:
                if not self.muted:
                    return _end(watch.writer)
                deadline += 3600

    def _bookmark(
        self, writer: asyncio.StreamWriter, resource: Resource, version: int, annotations: Mapping[str, str]
    ) -> None:
        metadata = {"resourceVersion": str(version), "annotations": dict(annotations)}
        _event(writer, "BOOKMARK", {"kind": resource.kind, "metadata": metadata})

    def _object(
        self,
        writer: asyncio.StreamWriter,
        verb: str,
        resource: Resource,
        namespace: str | None,
        name: str,
        subresource: str | None,
        raw: bytes,
    ) -> bool:
        if verb == "create":
            body = json.loads(raw)
            key = (resource, namespace or "", body["metadata"]["name"])
            if key in self._objects:
                return _answer(writer, 409, _status(409, "AlreadyExists", "exists"))
            body["metadata"]["namespace"] = namespace or ""
            body |= {"apiVersion": resource.base_path.split("/", 2)[2], "kind": resource.kind}
            return _answer(writer, 201, self.put(body))
        stored = self._objects.get((resource, namespace or "", name))
        if stored is None:
            return _answer(writer, 404, _status(404, "NotFound", f"{name} is not there"))
        if verb == "get":
            return _answer(writer, 200, stored)
        body = json.loads(raw)
        version = body["metadata"].get("resourceVersion")
        if version is not None and version != stored["metadata"]["resourceVersion"]:
            return _answer(writer, 409, _status(409, "Conflict", "the object has been modified"))
        if subresource == "status":
            body = {**stored, "status": body.get("status", {})}
        return _answer(writer, 200, self.put(body))

    def _resource_of(self, body: Mapping[str, Any]) -> Resource:
        for resource in self._installed:
            group_version = f"{resource.group}/{resource.version}" if resource.group else resource.version
            if (group_version, resource.kind) == (body["apiVersion"], body["kind"]):
                return resource
        raise LookupError(f"{body['apiVersion']} {body['kind']} is not installed")

    def _note(self, change: _Change) -> None:
        self._changes.append(change)
        for watch in self._watches:
            watch.wake.set()


def _verb(method: str, path: str, params: Mapping[str, str], route: Any) -> str:
    if path.endswith("/selfsubjectaccessreviews"):
        return "review"
    if path.rstrip("/") in ("/apis", "/api") or (route is None and path.startswith("/apis/") and path.count("/") == 3):
        return "discovery"
    if method == "GET":
        if params.get("watch") in ("true", "1"):
            return "watch"
        return "get" if route is not None and route[2] else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def _answer(writer: asyncio.StreamWriter, code: int, body: Any, headers: Mapping[str, str] | None = None) -> bool:
    content = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {code} -", "Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
    return True


def _event(writer: asyncio.StreamWriter, kind: str, body: Any) -> None:
    _chunk(writer, json.dumps({"type": kind, "object": body}).encode() + b"\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _end(writer: asyncio.StreamWriter) -> bool:
    writer.write(b"0\r\n\r\n")
    return True

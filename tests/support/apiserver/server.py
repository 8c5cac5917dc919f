"""The API server itself: connections, and each request to what answers it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.apiserver import watching, wire
from support.apiserver.api_discovery import discovery
from support.apiserver.asked import Place, Seen, Selection, place_of, verb_of
from support.apiserver.trouble import TroubledStore
from zerohop_agent.discovery.resources import Resource


class ApiServer(TroubledStore):
    """One API server. Change its objects from the test's own loop."""

    def __init__(
        self, *, streaming_lists: bool = True, aggregated: bool = True, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__()
        self.streaming_lists = streaming_lists
        self.aggregated = aggregated
        self.requests: list[Seen] = []
        self.port = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

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

    # What was seen.

    def count(self, verb: str, resource: Resource | None = None) -> int:
        """How many requests of `verb` came (for `resource`)."""
        return sum(
            1
            for seen in self.requests
            if seen.verb == verb
            and (resource is None or (f"/{resource.plural}" in seen.path and resource.base_path in seen.path))
        )

    @property
    def open_watches(self) -> int:
        """How many watches are open now."""
        return len(self.watches)

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
        """Answers one request; False where the connection is of no more use."""
        request = await wire.read(reader)
        if request is None:
            return False
        place = place_of(request.path, self.installed)
        verb = verb_of(request.method, request.path, request.params, place)
        seen = Seen(verb, request.method, request.path, request.params, request.token)
        self.requests.append(seen)
        if self.token is not None and seen.token != self.token:
            return wire.answer(writer, 401, wire.status(401, "Unauthorized", "token is not valid"))
        if (fault := self.fault_for(seen)) is not None:
            return wire.answer(writer, fault.status, wire.status(fault.status, fault.reason, "as told"), fault.headers)
        if verb == "discovery":
            return self._discover(writer, request)
        if verb == "review":
            return self._review(writer, json.loads(request.body))
        if place is None:
            return wire.answer(writer, 404, wire.status(404, "NotFound", f"{request.path} is not there"))
        if self.forbids(verb, place.resource.plural, place.resource.group, place.namespace):
            account = "system:serviceaccount:zerohop:agent"
            message = f'{place.resource.plural} is forbidden: User "{account}" cannot {verb}'
            return wire.answer(writer, 403, wire.status(403, "Forbidden", message))
        selection = Selection(place.resource, place.namespace, request.params)
        if verb == "watch":
            return await watching.serve(self, writer, selection, streaming_lists=self.streaming_lists)
        if verb == "list":
            return self._list(writer, selection)
        if verb == "create":
            return self._create(writer, place, json.loads(request.body))
        return self._object(writer, verb, place, request.body)

    def _discover(self, writer: asyncio.StreamWriter, request: wire.Request) -> bool:
        aggregated = self.aggregated and "apidiscovery.k8s.io" in request.headers.get("accept", "")
        found = discovery(self.installed, request.path, aggregated=aggregated)
        if found is None:
            return wire.answer(writer, 404, wire.status(404, "NotFound", request.path))
        return wire.answer(writer, 200, found)

    def _review(self, writer: asyncio.StreamWriter, body: Any) -> bool:
        asked = body["spec"].get("resourceAttributes", {})
        plural = "/".join(part for part in (asked.get("resource"), asked.get("subresource")) if part)
        allowed = not self.forbids(asked.get("verb"), plural, asked.get("group"), asked.get("namespace") or None)
        return wire.answer(writer, 201, {**body, "status": {"allowed": allowed}})

    def _list(self, writer: asyncio.StreamWriter, selection: Selection) -> bool:
        def name_of(body: Mapping[str, Any]) -> tuple[str, str]:
            return body["metadata"].get("namespace", ""), body["metadata"]["name"]

        params = selection.params
        items = sorted(self.selected(selection), key=name_of)
        start = int(params.get("continue") or 0)
        limit = int(params.get("limit") or 0)
        metadata: dict[str, Any] = {"resourceVersion": str(self.version)}
        if limit and params.get("resourceVersion") != "0" and start + limit < len(items):
            metadata["continue"] = str(start + limit)
            items = items[start : start + limit]
        else:
            items = items[start:]
        body = {"kind": f"{selection.resource.kind}List", "metadata": metadata, "items": items}
        return wire.answer(writer, 200, body)

    def _create(self, writer: asyncio.StreamWriter, place: Place, body: dict[str, Any]) -> bool:
        resource, namespace = place.resource, place.namespace or ""
        if self.has(resource, body["metadata"]["name"], namespace):
            return wire.answer(writer, 409, wire.status(409, "AlreadyExists", "exists"))
        body["metadata"]["namespace"] = namespace
        body |= {"apiVersion": resource.base_path.split("/", 2)[2], "kind": resource.kind}
        return wire.answer(writer, 201, self.put(body))

    def _object(self, writer: asyncio.StreamWriter, verb: str, place: Place, raw: bytes) -> bool:
        """Gets or replaces one object; a replacement that comes from an older version is refused."""
        name, namespace = place.name or "", place.namespace or ""
        if not self.has(place.resource, name, namespace):
            return wire.answer(writer, 404, wire.status(404, "NotFound", f"{name} is not there"))
        stored = self.get(place.resource, name, namespace)
        if verb == "get":
            return wire.answer(writer, 200, stored)
        body = json.loads(raw)
        version = body["metadata"].get("resourceVersion")
        if version is not None and version != stored["metadata"]["resourceVersion"]:
            return wire.answer(writer, 409, wire.status(409, "Conflict", "the object has been modified"))
        if place.subresource == "status":
            body = {**stored, "status": body.get("status", {})}
        return wire.answer(writer, 200, self.put(body))

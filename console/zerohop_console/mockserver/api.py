"""The routes of a model server: OpenAI's, vLLM's, and an `/admin` of its own for breaking it while it runs."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

from zerohop_console.mockserver.completion import BadRequest, Completion, read_completion
from zerohop_console.mockserver.engine import Engine, EngineRequest
from zerohop_console.mockserver.faults import Faults
from zerohop_console.mockserver.http import Connection, HttpRequest
from zerohop_console.mockserver.page import Measurements, Page

_PAGE_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Api:
    """Answers requests from the engine. One per server; everything happens in one event loop."""

    def __init__(
        self,
        *,
        name: str,
        model: str,
        adapters: tuple[str, ...],
        engine: Engine,
        page: Page,
        measurements: Measurements,
    ) -> None:
        self.faults = Faults()
        self.served = 0
        self._name = name
        self._model = model
        self._adapters = list(adapters)
        self._engine = engine
        self._page = page
        self._measurements = measurements
        self._served_headers = {"x-mock-server": name}
        self._routes: dict[tuple[str, str], Callable[[HttpRequest, Connection], None]] = {
            ("POST", "/v1/chat/completions"): self._complete,
            ("POST", "/v1/completions"): self._complete,
            ("POST", "/v1/embeddings"): self._embed,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/version"): lambda _, connection: connection.respond_json(200, {"version": "0.32.0"}),
            ("GET", "/metrics"): self._metrics,
            ("GET", "/admin"): self._admin,
            ("POST", "/admin"): self._admin,
            ("POST", "/sleep"): self._sleep,
            ("POST", "/wake_up"): self._sleep,
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
            ("POST", "/v1/load_lora_adapter"): self._adapter,
            ("POST", "/v1/unload_lora_adapter"): self._adapter,
        }

    def handle(self, request: HttpRequest, connection: Connection) -> None:
        """Answer one request, now or when the engine has tokens for it."""
        route = self._routes.get((request.method, request.path))
        if route is None:
            known = any(path == request.path for _, path in self._routes)
            self._refuse(connection, 405 if known else 404, "Method Not Allowed" if known else "Not Found")
        elif request.path == "/admin" or not self.faults.answer(request, connection):
            route(request, connection)

    def _complete(self, request: HttpRequest, connection: Connection) -> None:
        try:
            wanted = read_completion(request.path, request.body)
        except BadRequest as error:
            self._refuse(connection, 400, str(error))
            return
        if wanted.model != self._model and wanted.model not in self._adapters:
            self._refuse(connection, 404, f"The model `{wanted.model}` does not exist.", "NotFoundError")
            return
        limit = self._engine.settings.max_model_len
        if wanted.prompt_tokens + wanted.max_tokens > limit:
            total = wanted.prompt_tokens + wanted.max_tokens
            self._refuse(connection, 400, f"This model's maximum context length is {limit} tokens, not {total}.")
            return
        self.served += 1
        answer = _Answer(wanted, request, connection, {**self._served_headers, **_request_id(request)})
        engine_request = EngineRequest(
            prompt=wanted.prompt,
            prompt_tokens=wanted.prompt_tokens,
            max_tokens=wanted.max_tokens,
            adapter=None if wanted.model == self._model else wanted.model,
            on_tokens=answer.tokens,
        )
        request.on_disconnect = lambda: self._engine.abort(engine_request)
        self._engine.submit(engine_request)

    def _embed(self, request: HttpRequest, connection: Connection) -> None:
        self.served += 1
        data = [{"object": "embedding", "index": 0, "embedding": [0.0] * 8}]
        tokens = len(request.body) // 4
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        value = {"object": "list", "model": self._model, "data": data, "usage": usage}
        connection.respond_json(200, value, {**self._served_headers, **_request_id(request)})

    def _models(self, request: HttpRequest, connection: Connection) -> None:  # noqa: ARG002
        cards = [_card(self._model, None, self._engine.settings.max_model_len)]
        cards += [_card(adapter, self._model, None) for adapter in self._adapters]
        connection.respond_json(200, {"object": "list", "data": cards}, self._served_headers)

    def _health(self, request: HttpRequest, connection: Connection) -> None:  # noqa: ARG002
        connection.respond(200 if self.faults.ready else 503, "text/plain", b"", self._served_headers)

    def _metrics(self, request: HttpRequest, connection: Connection) -> None:  # noqa: ARG002
        connection.respond(200, _PAGE_TYPE, self._page.text().encode())

    def _sleep(self, request: HttpRequest, connection: Connection) -> None:
        self._measurements.sleeping = request.path == "/sleep"
        self._engine.reset_prefix_cache()
        connection.respond(200, "text/plain", b"")

    def _reset_prefix_cache(self, request: HttpRequest, connection: Connection) -> None:  # noqa: ARG002
        self._engine.reset_prefix_cache()
        connection.respond(200, "text/plain", b"")

    def _adapter(self, request: HttpRequest, connection: Connection) -> None:
        name = (_json_object(request.body) or {}).get("lora_name")
        loading = request.path == "/v1/load_lora_adapter"
        if not isinstance(name, str) or (name in self._adapters) == loading:
            self._refuse(connection, 400, "lora_name is missing, already loaded, or not loaded")
            return
        (self._adapters.append if loading else self._adapters.remove)(name)
        connection.respond(200, "text/plain", b"Success")

    def _admin(self, request: HttpRequest, connection: Connection) -> None:
        if request.method == "POST":
            change = _json_object(request.body)
            complaint = "expected a JSON object" if change is None else self._change(change)
            if complaint is not None:
                self._refuse(connection, 400, complaint)
                return
        connection.respond_json(
            200,
            {
                "name": self._name,
                "slow_factor": self._engine.slow_factor,
                "frozen": self._engine.frozen,
                "served": self.served,
                "unfinished": self._engine.unfinished,
                **self.faults.as_dict(),
            },
        )

    def _change(self, change: dict[str, Any]) -> str | None:
        """Apply an `/admin` body; return what is wrong with it, if anything (nothing is changed then)."""
        engine_fields = {"slow_factor": float, "frozen": bool}
        rest = {name: value for name, value in change.items() if name not in engine_fields}
        for name, kind in engine_fields.items():
            if name in change and not isinstance(change[name], (int, float) if kind is float else kind):
                return f"{name} must be a {kind.__name__}"
        if "slow_factor" in change and not change["slow_factor"] > 0:
            return "slow_factor must be positive"
        complaint = self.faults.change(rest)
        if complaint is None:
            self._engine.slow_factor = float(change.get("slow_factor", self._engine.slow_factor))
            self._engine.frozen = bool(change.get("frozen", self._engine.frozen))
        return complaint

    def _refuse(self, connection: Connection, status: int, message: str, kind: str = "BadRequestError") -> None:
        error = {"message": message, "type": kind, "param": None, "code": status}
        connection.respond_json(status, {"error": error}, self._served_headers)


class _Answer:
    """Turns an engine request's tokens into the answer that its client asked for."""

    def __init__(
        self, wanted: Completion, request: HttpRequest, connection: Connection, headers: dict[str, str]
    ) -> None:
        self._wanted = wanted
        self._request = request
        self._connection = connection
        self._headers = headers
        self._id = f"{wanted.id_prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._words: list[str] = []

    def tokens(self, request: EngineRequest, count: int, reason: str | None) -> None:
        """Take new tokens. Called by the engine after each step; `reason` is set with the last ones."""
        first = not self._words
        words = [self._wanted.word(len(self._words) + index) for index in range(count)]
        self._words += words
        if not self._wanted.stream:
            if reason is not None:
                self._request.on_disconnect = None
                self._connection.respond_json(200, self._whole(request, reason), self._headers)
            return
        if first:
            self._connection.start_stream("text/event-stream; charset=utf-8", self._headers)
        part = self._event(self._wanted.delta("".join(words), first=first, reason=reason))
        if reason is None:
            self._connection.send_part(part)
            return
        if self._wanted.include_usage:
            part += self._event({"choices": [], "usage": _usage(request)})
        self._request.on_disconnect = None
        self._connection.end_stream(part + b"data: [DONE]\n\n")

    def _event(self, fields: dict[str, Any]) -> bytes:
        head = {
            "id": self._id,
            "object": self._wanted.chunk_object,
            "created": self._created,
            "model": self._wanted.model,
        }
        return b"data: " + json.dumps({**head, **fields}, separators=(",", ":")).encode() + b"\n\n"

    def _whole(self, request: EngineRequest, reason: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": self._wanted.whole_object,
            "created": self._created,
            "model": self._wanted.model,
            "choices": [self._wanted.choice("".join(self._words), reason)],
            "usage": _usage(request),
        }


def _usage(request: EngineRequest) -> dict[str, Any]:
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + request.generated,
        "completion_tokens": request.generated,
        "prompt_tokens_details": {"cached_tokens": request.cached_tokens},
    }


def _card(name: str, parent: str | None, max_model_len: int | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "vllm",
        "root": name,
        "parent": parent,
        "max_model_len": max_model_len,
    }


def _request_id(request: HttpRequest) -> dict[str, str]:
    value = request.headers.get("x-request-id")
    return {"x-request-id": value} if value else {}


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


async def serve(api: Api, host: str, port: int) -> tuple[asyncio.Server, set[Connection]]:
    """Listen and return the server with its set of open connections. Raises: OSError."""
    connections: set[Connection] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(api.handle, connections), host, port, backlog=1024)
    return server, connections

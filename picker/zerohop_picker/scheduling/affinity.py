"""Session affinity, shared by the scorer and the filter: how a request names its session and how that is kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from zerohop_picker.scheduling.request import Request
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.sessions import DEFAULT_TTL_S, ID_HEADER, TOKEN_HEADER, decode_token, encode_token
from zerohop_process.strict import Fields, Node, list_of, number, text, within


@dataclass(frozen=True, slots=True)
class SessionIdConfig:
    """Where an id is found and how long its binding lives unused."""

    sources: tuple[str, ...] = (ID_HEADER,)
    eviction_ttl_seconds: float = DEFAULT_TTL_S


def read_token_config(node: Node) -> str:
    """Read ``encodedEndpointHeaderConfig``; return the header's name."""
    fields = Fields(node)
    header = fields.take("header", text, TOKEN_HEADER)
    fields.finish()
    return header.lower()


def read_id_config(node: Node) -> SessionIdConfig:
    """Read ``sessionIdConfig``."""
    fields = Fields(node)
    sources = fields.take("sources", list_of(_read_source), None)
    ttl = fields.take("evictionTtlSeconds", within(number, 0.001, 31_536_000), DEFAULT_TTL_S)
    # Expired bindings are found out when they are read; there is nothing to sweep.
    fields.take("evictionSweepSeconds", within(number, 0.001, 31_536_000), 10.0)
    fields.finish()
    return SessionIdConfig(tuple(sources) if sources else (ID_HEADER,), ttl)


def _read_source(node: Node) -> str:
    fields = Fields(node)
    if fields.has("attribute") or fields.has("producer"):
        raise node.error("request attributes are not supported as a session source; name a request header instead")
    header = fields.take("header", text)
    fields.finish()
    return header.lower()


@dataclass(slots=True)
class Affinity:
    """One way to stay with an endpoint; ``profile`` names the profile whose endpoint is kept ("" = the primary one)."""

    strategy: str = "encoded_endpoint_header"
    profile_name: str = ""
    encoded_endpoint_header_config: str = TOKEN_HEADER
    session_id_config: SessionIdConfig = field(default_factory=SessionIdConfig)

    def row(self, request: Request) -> int | None:
        """Return the row of the request's session, None when it has none or its endpoint is not in the snapshot."""
        if self.strategy == "encoded_endpoint_header":
            token = request.headers.get(self.encoded_endpoint_header_config)
            name = decode_token(token) if token else None
            names = request.view.names
            return None if name is None else names.row_of_name.get(name, names.row_of.get(name))
        session = self._session(request)
        if session is None or request.sessions is None:
            return None
        return request.sessions.row(self._scope(), session, request.view, request.now_ns)

    def picked(self, request: Request, endpoints: Endpoints, row: int) -> None:
        """Bind the request's session to the endpoint it goes to; every use renews the binding."""
        if self.strategy != "session_id" or request.sessions is None:
            return
        session = self._session(request)
        if session is not None:
            expires = request.now_ns + int(self.session_id_config.eviction_ttl_seconds * 1e9)
            generation = int(endpoints.view.raw("generation")[row])
            request.sessions.bind(self._scope(), session, row, generation, expires)

    def response_headers(self, request: Request, row: int) -> tuple[tuple[str, bytes], ...]:
        """Return the header that lets the client come back to ``row``."""
        if self.strategy != "encoded_endpoint_header":
            return ()
        return ((self.encoded_endpoint_header_config, encode_token(request.view.names.names[row])),)

    def _session(self, request: Request) -> str | None:
        for header in self.session_id_config.sources:
            value = request.headers.get(header)
            if value:
                return value
        return None

    def _scope(self) -> str:
        return "\n".join((self.profile_name, *self.session_id_config.sources))

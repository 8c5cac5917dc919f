"""Requests to the API server: lightkube's configuration, authentication and TLS, and plain JSON.

Only those parts of lightkube are used. Its own watch has no read timeout and retries an expired version for ever, so
the list-and-watch loop is ours (`reflector`).
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
from lightkube.config.client_adapter import BearerTokenFileAuth, user_auth, verify_cluster
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError as LightkubeConfigError

from zerohop_process.errors import ConfigError

#: A dead peer is noticed after 20 s of silence and 3 unanswered probes 5 s apart, also where no packet says so.
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 35_000),
]
_REQUEST_TIMEOUT_S = 15.0
#: Objects larger than this are not ours: etcd refuses more than 1.5 MB.
MOST_LINE_BYTES = 8 * 1024 * 1024


class ApiStatus(Exception):
    """The API server answered, but not with success.

    `code` is the HTTP status (also of an ERROR event in a watch), `reason` the machine-readable word of its Status.
    """

    def __init__(self, code: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def expired(self) -> bool:
        """True when a resource version is too old: only a new list helps."""
        return self.code == 410 or self.reason in ("Expired", "Gone")


class ApiUnreachable(Exception):
    """No usable answer: refused, timed out, cut off, or not JSON."""


class NoConfig(ConfigError):
    """There is no configuration at all, as on a machine that has nothing to do with Kubernetes."""


def load_config(kubeconfig: Path | None, service_account: Path = Path(SERVICE_ACCOUNT)) -> SingleConfig:
    """The cluster to talk to: the given file, else the pod's service account, else $KUBECONFIG, else ~/.kube/config.

    Raises: ConfigError saying which of these was tried.
    """
    try:
        if kubeconfig is not None:
            return KubeConfig.from_file(kubeconfig).get()
        return KubeConfig.from_env(service_account=service_account).get()
    except LightkubeConfigError as error:
        tried = f"--kubeconfig {kubeconfig}" if kubeconfig else "the service account, $KUBECONFIG and ~/.kube/config"
        raise NoConfig(f"no Kubernetes configuration: {error} (tried {tried})") from error
    except (KeyError, OSError, ValueError, TypeError) as error:
        raise ConfigError(f"the Kubernetes configuration cannot be read: {type(error).__name__} {error}") from error
    except Exception as error:  # yaml and msgspec errors share no base class
        raise ConfigError(f"the Kubernetes configuration is malformed: {error}") from error


class _FreshTokenAuth(BearerTokenFileAuth):  # type: ignore[misc]
    """Reads the token file for every request: the kubelet rotates it, and a watch must not start with the old one."""

    def auth_flow(self, request: httpx2.Request) -> Any:
        self._last_bearer = self._read_token()
        return super().auth_flow(request)


class ApiClient:
    """One API server. `await close()` when done.

    Raises: ConfigError when a certificate or key that the configuration names cannot be used.
    """

    def __init__(self, config: SingleConfig) -> None:
        user = config.user or User()
        self.server = config.cluster.server
        plain = self.server.startswith("http://")
        try:
            auth = _FreshTokenAuth(user.token_file) if user.token_file else user_auth(user)
            verify = False if plain else verify_cluster(config.cluster, user, config.abs_file)
        except (OSError, ValueError, LightkubeConfigError) as error:  # ssl.SSLError is an OSError
            named = ", ".join(str(name) for name in _files_of(config) if name) or "the inline data"
            raise ConfigError(
                f"the Kubernetes configuration for {self.server} names a certificate, key or user that cannot be used: "
                f"{_sentence(error)} (look at {named})"
            ) from error
        transport = httpx2.AsyncHTTPTransport(
            verify=verify, http2=False, socket_options=_KEEPALIVE, limits=httpx2.Limits(max_connections=32)
        )
        self._http = httpx2.AsyncClient(
            base_url=self.server,
            auth=auth,
            transport=transport,
            timeout=_REQUEST_TIMEOUT_S,
            trust_env=False,
            headers={"User-Agent": "zerohop-agent", "Accept": "application/json"},
        )

    async def close(self) -> None:
        """Closes every connection."""
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        accept: str | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """The decoded JSON answer.

        Raises: ApiStatus for an answer that is not a success, ApiUnreachable when there is none.
        """
        headers = {}
        if accept is not None:
            headers["Accept"] = accept
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = content_type
        try:
            response = await self._http.request(method, path, params=params, content=content, headers=headers)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, LightkubeConfigError) as error:
            raise ApiUnreachable(_sentence(error)) from error
        if response.status_code >= 300:
            raise _status_of(response.status_code, response.content, response.headers)
        try:
            return json.loads(response.content)
        except ValueError as error:
            raise ApiUnreachable(f"{method} {path}: the answer is not JSON") from error

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events of a watch, as decoded objects.

        The iterator ends when the server ends the stream after a whole line.
        Raises: ApiStatus for an answer that is not 200, ApiUnreachable for a cut or silent connection.
        """
        timeout = httpx2.Timeout(_REQUEST_TIMEOUT_S, read=silence_s)
        try:
            async with self._http.stream("GET", path, params=dict(params), timeout=timeout) as response:
                if response.status_code != 200:
                    raise _status_of(response.status_code, await response.aread(), response.headers)
                async with contextlib.aclosing(_events(response)) as events:
                    yield events
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, LightkubeConfigError) as error:
            raise ApiUnreachable(_sentence(error)) from error


async def _events(response: httpx2.Response) -> AsyncGenerator[dict[str, Any]]:
    """Each whole line as an object; the rest of a cut line is never looked at."""
    buffer = bytearray()
    async for chunk in response.aiter_bytes():
        buffer += chunk
        while (end := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            if line.strip():
                yield _event(line)
        if len(buffer) > MOST_LINE_BYTES:
            raise ApiUnreachable("a watch event is larger than 8 MiB")
    if buffer.strip():
        raise ApiUnreachable("the watch was cut in the middle of an event")


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise ApiUnreachable("a watch event is not JSON") from error
    if not isinstance(event, dict):
        raise ApiUnreachable("a watch event is not an object")
    return event


def status_from_object(body: Any, code: int, retry_after_s: float | None = None) -> ApiStatus:
    """The error that a Status object describes; `code` where it names none."""
    if not isinstance(body, dict):
        return ApiStatus(code, "Unknown", "the API server gave no reason", retry_after_s)
    details = body.get("details")
    if retry_after_s is None and isinstance(details, dict) and isinstance(details.get("retryAfterSeconds"), int):
        retry_after_s = float(details["retryAfterSeconds"]) or None
    stated = body.get("code")
    return ApiStatus(
        stated if isinstance(stated, int) and stated else code,
        str(body.get("reason") or "Unknown"),
        str(body.get("message") or "the API server gave no reason"),
        retry_after_s,
    )


def _status_of(code: int, content: bytes, headers: Mapping[str, str]) -> ApiStatus:
    retry_after = headers.get("retry-after", "")
    retry_after_s = float(retry_after) if retry_after.isdecimal() else None
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    status = status_from_object(body, code, retry_after_s)
    status.code = code
    return status


def _files_of(config: SingleConfig) -> tuple[str | None, ...]:
    user = config.user or User()
    return config.cluster.certificate_auth, user.client_cert, user.client_key, user.token_file


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

"""How model servers are read, the same for all endpoints unless an endpoint says otherwise."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from zerohop_agent.modelserver.client import BODY_LIMIT_BYTES
from zerohop_agent.modelserver.engines import ENGINES
from zerohop_agent.modelserver.mapping import EngineMapping
from zerohop_process import strict
from zerohop_process.strict import Fields, Node

__all__ = ["PROTOCOL_VERSION", "ModelServerSettings", "read_model_server_settings"]

_MS = 1_000_000
_S = 1_000_000_000

#: version of the model server protocol that is read here; `docs/engines.md` states it
PROTOCOL_VERSION = "1"


@dataclass(frozen=True, slots=True)
class ModelServerSettings:
    """Intervals and bounds of every reader."""

    scrape_interval_ns: int = 50 * _MS
    #: bound on one whole exchange, from the connection to the last byte
    timeout_ns: int = 1 * _S
    #: interval for servers that gather their page from files of several processes
    multi_process_interval_ns: int = 1 * _S
    #: no back-off goes beyond this
    max_interval_ns: int = 5 * _S
    limit_bytes: int = BODY_LIMIT_BYTES
    #: served models and their context length change with a restart or a loaded adapter only
    models_path: str = "/v1/models"
    models_interval_ns: int = 30 * _S
    health_interval_ns: int = 5 * _S
    #: certificates of pods do not name their addresses, so `https` takes any, as other pickers do by default
    tls_verify: bool = False
    tls_ca_file: str | None = None
    #: ask servers that can (vLLM) for the wanted metrics only: a fiftieth of the page, a fifth of the server's work
    narrow: bool = True
    #: ask for ORCA load reports with each request, and read them where a server sends them
    orca: bool = False
    #: the age at which values count as stale, to compare with the interval at the start; None: not checked
    stale_after_ns: int | None = None
    mappings: Mapping[str, EngineMapping] = field(default_factory=lambda: ENGINES)


def read_model_server_settings(node: Node) -> ModelServerSettings:
    """Settings out of the `model_servers:` section; interval, staleness and mappings are said elsewhere.

    Raises: ConfigError with the place for a wrong value or an unknown field.
    """
    defaults = ModelServerSettings()
    fields = Fields(node)
    settings = ModelServerSettings(
        timeout_ns=fields.take("timeout", _time, defaults.timeout_ns),
        multi_process_interval_ns=fields.take("multi_process_interval", _time, defaults.multi_process_interval_ns),
        max_interval_ns=fields.take("max_interval", _time, defaults.max_interval_ns),
        models_path=fields.take("models_path", _path, defaults.models_path),
        models_interval_ns=fields.take("models_interval", _time, defaults.models_interval_ns),
        health_interval_ns=fields.take("health_interval", _time, defaults.health_interval_ns),
        tls_verify=fields.take("tls_verify", bool, defaults.tls_verify),
        tls_ca_file=fields.take("tls_ca_file", _file, defaults.tls_ca_file),
        narrow=fields.take("narrow", bool, defaults.narrow),
        orca=fields.take("orca", bool, defaults.orca),
    )
    fields.finish()
    if settings.tls_ca_file is not None and not settings.tls_verify:
        raise node.error("tls_ca_file is not used while tls_verify is false")
    return settings


def _time(node: Node) -> int:
    value = strict.duration(node)
    if not _MS <= value <= 3600 * _S:
        raise node.error("a time lies between 1ms and 1h here")
    return value


def _path(node: Node) -> str:
    value = strict.text(node)
    if not value.startswith("/"):
        raise node.error("expected a path that starts with '/'")
    return value


def _file(node: Node) -> str:
    value = strict.text(node)
    try:
        ssl.create_default_context(cafile=value)
    except OSError as error:  # ssl.SSLError is one
        raise node.error(f"{value!r} cannot be used as a file of certificates ({error.strerror or error})") from None
    return value

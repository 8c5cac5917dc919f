"""How model servers are read, the same for all endpoints unless an endpoint says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zerohop_agent.modelserver.client import BODY_LIMIT_BYTES
from zerohop_agent.modelserver.engines import ENGINES
from zerohop_agent.modelserver.mapping import EngineMapping

__all__ = ["PROTOCOL_VERSION", "ModelServerSettings"]

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

"""What the agent is told about model servers: endpoints and pools, as plain values.

A *source* (command-line flags, a watched file, Kubernetes discovery) says everything it knows at once, as one
`EndpointSet`, each time something changes. The runtime merges the sets of all sources and works out what was added,
changed and removed, so that a source never needs to remember what it said before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from zerohop_process.address import Address
from zerohop_snapshot.layout import DrainReason

_NOTHING: Mapping[str, str] = MappingProxyType({})
_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """One model server that can be sent requests, as a source describes it.

    `key` names it for life: the pod's uid and port in Kubernetes, else the address. Two specs with one key are one
    endpoint; the same address under a new key is a new endpoint (another pod can get an address within seconds).
    `gpus` are UUIDs as the driver prints them (`GPU-...`, `MIG-...`). `origin` is empty for this node, else the name of
    the node that reads it.
    """

    key: str
    address: Address
    name: str
    uid: str = ""
    pools: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    models: tuple[str, ...] = ()
    #: Mapping to read its page with; None: found from the page.
    engine: str | None = None
    metrics_scheme: str = "http"
    metrics_path: str = "/metrics"
    #: None: the port of `address`.
    metrics_port: int | None = None
    #: None: the agent's `--scrape-interval`.
    scrape_interval_ns: int | None = None
    origin: str = ""
    gpus: tuple[str, ...] = ()
    #: `namespace/name` of its pod: what the kubelet says that this pod holds is added to `gpus`.
    pod: str = ""
    draining: bool = False
    drain_reason: DrainReason = DrainReason.NONE
    #: prefill, decode, both, encode; None: not said.
    role: str | None = None
    #: Version of the model server protocol that it speaks, where someone says so.
    protocol_version: str | None = None
    #: Relative share among the endpoints of its pool; None: not said.
    weight: float | None = None

    def same_reader(self, other: EndpointSpec) -> bool:
        """True when a reader made for `other` would read this endpoint in just the same way."""
        return (
            self.address == other.address
            and self.engine == other.engine
            and self.metrics_scheme == other.metrics_scheme
            and self.metrics_path == other.metrics_path
            and self.metrics_port == other.metrics_port
            and self.scrape_interval_ns == other.scrape_interval_ns
            and self.origin == other.origin
            and self.protocol_version == other.protocol_version
        )


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One pool of endpoints and the objects that say how it is used.

    `name` is `namespace/name` in Kubernetes. Each objective, rewrite and model is the plain `spec` of its object with
    `name`, `namespace`, `created` (unix seconds) and `uid` added, and goes to the pickers unread.
    """

    name: str
    app_protocol: str = "http"
    objectives: tuple[Mapping[str, Any], ...] = ()
    rewrites: tuple[Mapping[str, Any], ...] = ()
    models: tuple[Mapping[str, Any], ...] = ()
    #: What its endpoints speak, those that do not say it themselves.
    engine: str | None = None
    protocol_version: str | None = None
    #: Anything else that a source knows of the pool (selector, target ports, failure mode).
    attributes: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)


@dataclass(frozen=True, slots=True)
class EndpointSet:
    """Everything that one source knows at one moment."""

    endpoints: tuple[EndpointSpec, ...] = ()
    pools: tuple[PoolSpec, ...] = ()

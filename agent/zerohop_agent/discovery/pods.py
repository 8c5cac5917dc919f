"""Pods, cut down to what makes an endpoint of one: about 1 kB each where the API's object is 5 to 20."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Newest name first. Limits which of the pool's target ports are live in this pod.
_ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
_ENGINE_LABELS = ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")
_ROLE_LABEL = "llm-d.ai/role"


@dataclass(frozen=True, slots=True)
class Pod:
    """What discovery keeps of a pod. `ips` are in the order of the status, the primary one first."""

    uid: str
    namespace: str
    name: str
    node: str
    labels: Mapping[str, str]
    ips: tuple[str, ...]
    ready: bool
    #: deletionTimestamp is set: no new requests, those that run may end.
    terminating: bool
    #: Succeeded or Failed: its address may be another pod's already.
    finished: bool
    #: Unix seconds of the creation, 0 where unknown; of two pods with one address the younger has it.
    created: float
    #: None: no annotation, every target port is live.
    active_ports: frozenset[int] | None

    @property
    def engine(self) -> str | None:
        """The engine that a label names, in lower case; None where none does."""
        for label in _ENGINE_LABELS:
            if value := self.labels.get(label):
                return value.lower()
        return None

    @property
    def role(self) -> str | None:
        """prefill, decode, encode, both or a combination; None where no label says so."""
        return self.labels.get(_ROLE_LABEL) or None

    def address(self, family: str) -> str | None:
        """The pod's address in `family` (primary, ipv4, ipv6); None where it has none yet."""
        for ip in self.ips:
            if family == "primary" or ipaddress.ip_address(ip).version == (4 if family == "ipv4" else 6):
                return ip
        return None


def pod_from_json(body: Mapping[str, Any]) -> Pod | None:
    """The pod of an API object; None for an object without a uid or a name. Anything else odd counts as absent."""
    metadata, spec, status = (_map(body.get(part)) for part in ("metadata", "spec", "status"))
    ips = [_map(entry).get("ip") for entry in _list(status.get("podIPs"))]
    return make_pod(
        uid=metadata.get("uid"),
        namespace=metadata.get("namespace"),
        name=metadata.get("name"),
        node=spec.get("nodeName"),
        labels=_map(metadata.get("labels")),
        annotations=_map(metadata.get("annotations")),
        ips=[status.get("podIP"), *ips],
        ready=any(
            _map(condition).get("type") == "Ready" and _map(condition).get("status") == "True"
            for condition in _list(status.get("conditions"))
        ),
        terminating=bool(metadata.get("deletionTimestamp")),
        phase=status.get("phase"),
        created=unix_seconds(metadata.get("creationTimestamp")),
    )


def make_pod(
    *,
    uid: Any,
    namespace: Any,
    name: Any,
    node: Any,
    labels: Mapping[Any, Any],
    annotations: Mapping[Any, Any],
    ips: list[Any],
    ready: bool,
    terminating: bool,
    phase: Any,
    created: float | None,
) -> Pod | None:
    """A pod from loose values, which are checked here; the first of `ips` is the primary address."""
    if not (isinstance(uid, str) and uid and isinstance(name, str) and name):
        return None
    return Pod(
        uid=uid,
        namespace=namespace if isinstance(namespace, str) else "",
        name=name,
        node=node if isinstance(node, str) else "",
        labels={key: value for key, value in labels.items() if isinstance(key, str) and isinstance(value, str)},
        ips=tuple(dict.fromkeys(text for ip in ips if (text := _ip(ip)) is not None)),
        ready=ready,
        terminating=terminating,
        finished=phase in ("Succeeded", "Failed"),
        created=created or 0.0,
        active_ports=_active_ports(annotations),
    )


def _active_ports(annotations: Mapping[Any, Any]) -> frozenset[int] | None:
    for name in _ACTIVE_PORTS:
        value = annotations.get(name)
        if isinstance(value, str):
            # What is not a port is left out; an empty annotation says that no port is live.
            return frozenset(
                int(part) for part in value.replace(" ", "").split(",") if part.isdecimal() and len(part) <= 5
            )
    return None


def _ip(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        return None


def _map(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def unix_seconds(text: Any) -> float:
    """Unix seconds of an RFC 3339 timestamp; 0 for anything else."""
    if not isinstance(text, str):
        return 0.0
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0

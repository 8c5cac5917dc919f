"""Objects as the API server has them, with what a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerohop_agent.discovery.resources import Resource


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

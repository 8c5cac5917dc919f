"""A pod as the kubelet sends it: the fields of a core v1 Pod that are read, and their decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zerohop_agent._pb import kubelet_pb2 as pb


@dataclass(frozen=True, slots=True)
class ContainerPort:
    """A port that a container declares."""

    name: str
    port: int
    protocol: str


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod, or an init container that keeps running (a sidecar)."""

    name: str
    ports: tuple[ContainerPort, ...] = ()


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the kubelet sees it. Times are unix seconds, None when unset; `ips` starts with the primary address."""

    uid: str
    name: str
    namespace: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    node_name: str = ""
    host_network: bool = False
    phase: str = ""
    ready: bool = False
    ips: tuple[str, ...] = ()
    host_ip: str = ""
    containers: tuple[Container, ...] = ()
    created_s: float | None = None
    deleting_s: float | None = None

    @property
    def deleting(self) -> bool:
        """True once someone asked for the pod's deletion; it may still serve for its grace period."""
        return self.deleting_s is not None


def pod_from_bytes(raw: bytes) -> Pod:
    """A core v1 Pod in protobuf, as the kubelet sends it. Raises: DecodeError."""
    message = pb.Pod.FromString(raw)
    metadata, spec, status = message.metadata, message.spec, message.status
    sidecars = [container for container in spec.init_containers if container.restart_policy == "Always"]
    ips = dict.fromkeys([status.pod_ip, *(entry.ip for entry in status.pod_ips)])
    ips.pop("", None)
    return Pod(
        uid=metadata.uid,
        name=metadata.name,
        namespace=metadata.namespace,
        labels=dict(metadata.labels),
        annotations=dict(metadata.annotations),
        node_name=spec.node_name,
        host_network=spec.host_network,
        phase=status.phase,
        ready=any(condition.type == "Ready" and condition.status == "True" for condition in status.conditions),
        ips=tuple(ips),
        host_ip=status.host_ip,
        containers=tuple(_container(container) for container in [*spec.containers, *sidecars]),
        created_s=_seconds(metadata, "creation_timestamp"),
        deleting_s=_seconds(metadata, "deletion_timestamp"),
    )


def _container(message: pb.Container) -> Container:
    return Container(
        message.name,
        tuple(ContainerPort(port.name, port.container_port, port.protocol or "TCP") for port in message.ports),
    )


def _seconds(metadata: pb.ObjectMeta, field: str) -> float | None:
    if not metadata.HasField(field):
        return None
    moment = getattr(metadata, field)
    return float(moment.seconds + moment.nanos / 1e9)

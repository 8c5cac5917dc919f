"""Which pod holds which GPU, from the kubelet's PodResources v1 API.

The answer names pods by namespace and name only; discovery joins it with the pods it knows. Pods that were given GPUs
by an environment variable instead of a resource limit are not in it, and pods that ended may still be.

Source: kubernetes/kubelet pkg/apis/podresources/v1/api.proto; the forms of device ids are those of NVIDIA's device
plugin (https://github.com/NVIDIA/k8s-device-plugin), of GKE's, and of NVIDIA's DRA driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from zerohop_agent._pb import kubelet_pb2 as pb
from zerohop_agent.kubelet.channel import kubelet_error, open_channel

POD_RESOURCES_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")

_LIST = "/v1.PodResourcesLister/List"

#: (namespace, name) of a pod.
PodName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """Devices of one kind that one container holds, with ids as the device plugin or DRA driver made them."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]


class PodResourcesClient:
    """Asks the kubelet who holds which device. Poll every 5-10 s or when a pod changes: the kubelet limits the rate.

    Raises: KubeletError when the socket is absent, refuses or does not answer in time.
    """

    def __init__(self, socket: Path = POD_RESOURCES_SOCKET, *, timeout_s: float = 5.0) -> None:
        self.socket = socket
        self._timeout_s = timeout_s
        self._channel = open_channel(socket)
        self._list = self._channel.unary_unary(
            _LIST,
            request_serializer=pb.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pb.ListPodResourcesResponse.FromString,
        )

    async def list(self) -> tuple[DeviceClaim, ...]:
        """Every device that a container of this node holds, GPUs and others."""
        try:
            answer = await self._list(pb.ListPodResourcesRequest(), timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise kubelet_error(self.socket, error) from None
        return tuple(
            claim for pod in answer.pod_resources for container in pod.containers for claim in _claims(pod, container)
        )

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close(None)


def _claims(pod: pb.PodResources, container: pb.ContainerResources) -> Iterable[DeviceClaim]:
    for devices in container.devices:
        yield DeviceClaim(pod.namespace, pod.name, container.name, devices.resource_name, tuple(devices.device_ids))
    for dynamic in container.dynamic_resources:
        for claim in dynamic.claim_resources:
            ids = (claim.device_name,) if claim.device_name else tuple(device.name for device in claim.cdi_devices)
            yield DeviceClaim(pod.namespace, pod.name, container.name, claim.driver_name, ids)


@dataclass(frozen=True, slots=True)
class GpuNames:
    """The names under which one GPU, or one MIG instance of it, may appear in a device id.

    `index` is NVML's, `minor` that of `/dev/nvidiaN` (they differ on some nodes); `gi_id` is the GPU instance of a MIG
    slice, None for a whole board.
    """

    uuid: str
    index: int
    minor: int | None = None
    gi_id: int | None = None
    parent_uuid: str | None = None


def gpu_names(boards: Sequence[Mapping[str, Any]]) -> tuple[GpuNames, ...]:
    """The names of the boards in the cold map's `gpus` list (`uuid`, `index`, `minor`, `mig`)."""
    by_uuid = {board["uuid"]: board for board in boards}
    names = []
    for board in boards:
        mig = board.get("mig") or {}
        parent = by_uuid.get(mig.get("parent", ""), board)
        names.append(GpuNames(board["uuid"], parent["index"], parent.get("minor"), mig.get("gi_id"), mig.get("parent")))
    return tuple(names)


_REPLICA = re.compile(r"::\d+$")
_GKE = re.compile(r"^nvidia(?P<minor>\d+)(?:/gi(?P<gi>\d+))?(?:/vgpu\d+)?$")
_DRA = re.compile(r"^(?:.*[=/-])?gpu-(?P<minor>\d+)(?:-mig-.*)?$")


def gpu_uuid(device_id: str, gpus: Sequence[GpuNames]) -> str | None:
    """The UUID that a device id stands for, or None when it is not one of `gpus`.

    Understands `GPU-<uuid>`, `MIG-<uuid>`, the old `MIG-GPU-<uuid>/<gi>/<ci>`, replicas under time-slicing or MPS
    (`GPU-<uuid>::3`), an index, GKE's `nvidia0`, `nvidia0/gi3` and `nvidia0/gi3/vgpu1`, DRA's `gpu-0` and CDI names.
    """
    device_id = _REPLICA.sub("", device_id)
    if "=" in device_id:  # a CDI name: vendor/class=device
        device_id = device_id.rpartition("=")[2]
    known = {gpu.uuid for gpu in gpus}
    if device_id in known:
        return device_id
    if device_id.startswith("MIG-GPU-"):
        parent, _, rest = device_id.removeprefix("MIG-").partition("/")
        gi_id = rest.partition("/")[0]
        return _instance(gpus, gi_id, lambda gpu: gpu.parent_uuid == parent) or (parent if parent in known else None)
    if device_id.startswith(("GPU-", "MIG-")):
        return None
    if device_id.isdecimal():
        return _board(gpus, lambda gpu: gpu.index == int(device_id))
    if match := _GKE.match(device_id):
        minor = int(match["minor"])
        if match["gi"] is not None:
            return _instance(gpus, match["gi"], lambda gpu: _minor(gpu) == minor)
        return _board(gpus, lambda gpu: _minor(gpu) == minor)
    if match := _DRA.match(device_id):
        minor = int(match["minor"])
        return _board(gpus, lambda gpu: _minor(gpu) == minor)
    return None


def gpus_of_pods(claims: Iterable[DeviceClaim], gpus: Sequence[GpuNames]) -> dict[PodName, tuple[str, ...]]:
    """UUIDs of the GPUs that each pod holds, sorted; one GPU may belong to several pods. Other devices are left out."""
    held: dict[PodName, set[str]] = {}
    for claim in claims:
        uuids = {uuid for device_id in claim.device_ids if (uuid := gpu_uuid(device_id, gpus)) is not None}
        if uuids:
            held.setdefault((claim.namespace, claim.pod), set()).update(uuids)
    return {pod: tuple(sorted(uuids)) for pod, uuids in held.items()}


def unknown_gpu_ids(claims: Iterable[DeviceClaim], gpus: Sequence[GpuNames]) -> tuple[str, ...]:
    """Device ids of GPU resources that fit no GPU we know, for a log line: a form we have not met, or a stale pod."""
    return tuple(
        device_id
        for claim in claims
        if "nvidia.com/" in claim.resource or claim.resource == "gpu.nvidia.com"
        for device_id in claim.device_ids
        if gpu_uuid(device_id, gpus) is None
    )


def _minor(gpu: GpuNames) -> int:
    return gpu.index if gpu.minor is None else gpu.minor


def _board(gpus: Sequence[GpuNames], wanted: Any) -> str | None:
    return next((gpu.uuid for gpu in gpus if gpu.gi_id is None and wanted(gpu)), None)


def _instance(gpus: Sequence[GpuNames], gi_id: str, wanted: Any) -> str | None:
    if not gi_id.isdecimal():
        return None
    return next((gpu.uuid for gpu in gpus if gpu.gi_id == int(gi_id) and wanted(gpu)), None)

"""The pods of this node from the kubelet's Pods API: list, watch, and a view that follows both.

Source: KEP-4188; kubernetes.io/docs/reference/node/kubelet-pods-api (beta and on by default in 1.37, alpha in 1.35).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from google.protobuf.message import DecodeError

from zerohop_agent._pb import kubelet_pb2 as pb
from zerohop_agent.kubelet.channel import KubeletError, kubelet_error, open_channel

#: Where the socket is: since 1.37, and in the alpha of 1.35. The first that exists is used.
POD_SOCKETS = (Path("/var/lib/kubelet/pods-api/pods-api.sock"), Path("/var/lib/kubelet/pods/kubelet.sock"))

_LIST = "/v1alpha1.Pods/ListPods"
_WATCH = "/v1alpha1.Pods/WatchPods"


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


@dataclass(frozen=True, slots=True)
class PodSeen:
    """The pod is there, new or changed."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodGone:
    """The pod is no longer on the node."""

    uid: str


@dataclass(frozen=True, slots=True)
class InitialListDone:
    """All pods that were there when the watch began have been sent."""


PodEvent = PodSeen | PodGone | InitialListDone


class PodsClient:
    """Lists and watches the pods of this node over one Unix socket.

    Raises: KubeletError when the socket is absent, refuses, or answers what is not a pod.
    """

    def __init__(self, socket: Path, *, timeout_s: float = 10.0) -> None:
        self.socket = socket
        self._timeout_s = timeout_s
        self._channel = open_channel(socket)
        self._list = self._channel.unary_unary(
            _LIST,
            request_serializer=pb.ListPodsRequest.SerializeToString,
            response_deserializer=pb.ListPodsResponse.FromString,
        )
        self._watch = self._channel.unary_stream(
            _WATCH,
            request_serializer=pb.WatchPodsRequest.SerializeToString,
            response_deserializer=pb.WatchPodsEvent.FromString,
        )

    async def list(self) -> tuple[Pod, ...]:
        """Every pod of the node now."""
        try:
            answer = await self._list(pb.ListPodsRequest(), timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise kubelet_error(self.socket, error) from None
        return tuple(self._pod(raw) for raw in answer.pods)

    async def watch(self) -> AsyncGenerator[PodEvent, None]:
        """Events as they come, until the kubelet ends the stream; starts with every pod that is there."""
        call = self._watch(pb.WatchPodsRequest())
        numbers = _EventNumbers()
        try:
            async for message in call:
                if not message.pod:
                    yield InitialListDone()
                    continue
                pod = self._pod(message.pod)
                yield PodGone(pod.uid) if numbers.is_deletion(message.type, pod) else PodSeen(pod)
        except grpc.aio.AioRpcError as error:
            raise kubelet_error(self.socket, error) from None
        finally:
            call.cancel()

    def _pod(self, raw: bytes) -> Pod:
        try:
            return pod_from_bytes(raw)
        except DecodeError as error:
            raise KubeletError(self.socket, "INTERNAL", f"not a pod: {error}") from None

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close(None)


class _EventNumbers:
    """Tells deletions from other events although the numbers of the event types differ between releases.

    ADDED was 0 at first; later UNSPECIFIED was put before it. MODIFIED and DELETED follow ADDED in both, and a watch
    starts with an ADDED for each pod, so the first number seen with a pod is ADDED. A deletion is also known by its
    pod, which carries names only.
    """

    def __init__(self) -> None:
        self._added: int | None = None

    def is_deletion(self, number: int, pod: Pod) -> bool:
        if not pod.containers:
            return True
        if self._added is None:
            self._added = number
        return number == self._added + 2


class PodTable:
    """The pods known now, fed by lists and events that may cross each other.

    A list takes a moment to arrive, and events may come meanwhile: what an event said after the list was asked for
    wins.
    """

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._moved: dict[str, int] = {}
        self._clock = 0

    @property
    def pods(self) -> Mapping[str, Pod]:
        """By UID."""
        return self._pods

    def mark(self) -> int:
        """A moment, for `listed`: take it before asking for the list."""
        self._clock += 1
        return self._clock

    def seen(self, pod: Pod) -> bool:
        """Note that the pod is there; True when that changed something."""
        self._moved[pod.uid] = self.mark()
        changed = self._pods.get(pod.uid) != pod
        self._pods[pod.uid] = pod
        return changed

    def gone(self, uid: str) -> bool:
        """Note that the pod is gone; True when it was known."""
        self._moved[uid] = self.mark()
        return self._pods.pop(uid, None) is not None

    def listed(self, pods: Iterable[Pod], asked: int) -> bool:
        """Take a whole list that was asked for at `asked`; True when that changed something."""
        before = dict(self._pods)
        listed = {pod.uid: pod for pod in pods}
        for uid in list(self._pods):
            if uid not in listed and self._moved.get(uid, 0) < asked:
                del self._pods[uid]
        for uid, pod in listed.items():
            if self._moved.get(uid, 0) < asked:
                self._pods[uid] = pod
        self._moved = {uid: moment for uid, moment in self._moved.items() if moment >= asked}
        return self._pods != before


async def follow_pods(
    socket: Path,
    *,
    relist_s: float = 60.0,
    retry_s: float = 0.5,
    max_retry_s: float = 30.0,
    on_error: Callable[[KubeletError | None], None] | None = None,
) -> AsyncGenerator[tuple[Pod, ...], None]:
    """All pods of the node: once at the start, then at each change, for ever.

    Keeps what it knows while the kubelet is away (it says so through `on_error`, with None once it is back), tries
    again with growing pauses, and compares with a fresh list every `relist_s`, so that a lost event is not lost
    for good.
    """
    table = PodTable()
    pause_s = retry_s
    first = True
    while True:
        client = PodsClient(socket)
        try:
            async for changed in _follow_once(client, table, relist_s):
                pause_s = retry_s
                if on_error is not None:
                    on_error(None)
                if changed or first:
                    first = False
                    yield tuple(table.pods.values())
        except KubeletError as error:
            if on_error is not None:
                on_error(error)
        finally:
            await client.close()
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s = min(pause_s * 2, max_retry_s)


async def _follow_once(client: PodsClient, table: PodTable, relist_s: float) -> AsyncGenerator[bool, None]:
    """One watch with lists beside it; yields whether the table changed."""
    asked = table.mark()
    yield table.listed(await client.list(), asked)
    started = table.mark()
    initial: dict[str, Pod] = {}
    events = client.watch()
    next_event = asyncio.ensure_future(anext(events))
    loop = asyncio.get_running_loop()
    list_due = loop.time() + relist_s
    try:
        while True:
            done, _ = await asyncio.wait({next_event}, timeout=max(0.0, list_due - loop.time()))
            if loop.time() >= list_due:
                list_due = loop.time() + relist_s
                asked = table.mark()
                yield table.listed(await client.list(), asked)
            if not done:
                continue
            try:
                happening = next_event.result()
            except StopAsyncIteration:
                return
            next_event = asyncio.ensure_future(anext(events))
            if isinstance(happening, InitialListDone):
                yield table.listed(initial.values(), started)
            elif isinstance(happening, PodGone):
                initial.pop(happening.uid, None)
                yield table.gone(happening.uid)
            else:
                initial[happening.pod.uid] = happening.pod
                yield table.seen(happening.pod)
    finally:
        next_event.cancel()
        await asyncio.gather(next_event, return_exceptions=True)
        await events.aclose()


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

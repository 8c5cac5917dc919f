"""A kubelet's two local sockets, PodResources v1 and the Pods API, served for real over gRPC on Unix sockets.

    async with KubeletServer(tmp_path) as kubelet:
        kubelet.set_pod(pod("vllm-0", ip="10.1.0.5", ports={"http": 8000}))
        kubelet.hold("default", "vllm-0", "nvidia.com/gpu", ["GPU-..."])
        PodsClient(kubelet.pods_socket); PodResourcesClient(kubelet.resources_socket)

Changes are sent to every open watch in order. `stop()` and `start()` play a kubelet restart: the sockets are new
inodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from zerohop_agent._pb import kubelet_pb2 as pb

#: Numbers of the watch events: of the first alpha, and since UNSPECIFIED was put before ADDED.
FIRST_NUMBERS = {"ADDED": 0, "MODIFIED": 1, "DELETED": 2}
LATER_NUMBERS = {"ADDED": 1, "MODIFIED": 2, "DELETED": 3, "INITIAL_SYNC_COMPLETE": 4}


def pod(
    name: str,
    *,
    namespace: str = "default",
    uid: str = "",
    ip: str | None = "10.1.0.1",
    ips: Sequence[str] = (),
    ports: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    ready: bool = True,
    phase: str = "Running",
    deleting: bool = False,
    node: str = "node-a",
    host_ip: str = "192.0.2.1",
    created_s: int = 1_700_000_000,
) -> pb.Pod:
    """A core v1 Pod with one container, as protobuf."""
    message = pb.Pod()
    message.metadata.name = name
    message.metadata.namespace = namespace
    message.metadata.uid = uid or f"uid-{namespace}-{name}"
    message.metadata.creation_timestamp.seconds = created_s
    message.metadata.labels.update(labels or {})
    message.metadata.annotations.update(annotations or {})
    if deleting:
        message.metadata.deletion_timestamp.seconds = created_s + 60
    message.spec.node_name = node
    container = message.spec.containers.add(name="server")
    for port_name, number in (ports or {"http": 8000}).items():
        container.ports.add(name=port_name, container_port=number, protocol="TCP")
    message.status.phase = phase
    message.status.host_ip = host_ip
    message.status.conditions.add(type="Ready", status="True" if ready else "False")
    addresses = list(ips) or ([ip] if ip else [])
    if addresses:
        message.status.pod_ip = addresses[0]
    for address in addresses:
        message.status.pod_ips.add(ip=address)
    return message


class KubeletServer:
    """Serves both sockets from what it was told; an async context manager."""

    def __init__(self, directory: Path, *, numbers: Mapping[str, int] = LATER_NUMBERS) -> None:
        self.pods_socket = directory / "pods-api.sock"
        self.resources_socket = directory / "pod-resources.sock"
        self._numbers = numbers
        self._pods: dict[str, pb.Pod] = {}
        self._held: dict[tuple[str, str], dict[str, list[str]]] = {}
        self._claims: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self._watches: set[asyncio.Queue[pb.WatchPodsEvent | None]] = set()
        self._servers: list[grpc.aio.Server] = []
        #: Counted per method, for tests that bound the number of calls.
        self.calls: dict[str, int] = {"ListPods": 0, "WatchPods": 0, "List": 0}
        #: Set to answer every call with this status (such as FAILED_PRECONDITION while the kubelet starts).
        self.refuse: grpc.StatusCode | None = None
        #: Set False to keep watches open without sending changes, as a kubelet that lost an event would.
        self.send_events = True
        #: Called when a watch is asked for, before its first event is chosen.
        self.before_watch: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Create both sockets and serve."""
        self._servers = [
            await self._serve(self.pods_socket, "v1alpha1.Pods", self._pods_methods()),
            await self._serve(self.resources_socket, "v1.PodResourcesLister", self._resources_methods()),
        ]

    async def stop(self) -> None:
        """End every call and remove the sockets."""
        self.drop_watches()
        for server in self._servers:
            await server.stop(grace=None)
        self._servers = []
        for socket in (self.pods_socket, self.resources_socket):
            socket.unlink(missing_ok=True)

    # -- pods ----------------------------------------------------------------------------------------------------------

    def set_pod(self, message: pb.Pod) -> None:
        """Add or change a pod (by UID) and tell the watches."""
        kind = "MODIFIED" if message.metadata.uid in self._pods else "ADDED"
        self._pods[message.metadata.uid] = message
        self._tell(kind, message)

    def remove_pod(self, message_or_uid: pb.Pod | str) -> None:
        """Remove a pod and tell the watches; the event carries names only, as the kubelet's does."""
        uid = message_or_uid if isinstance(message_or_uid, str) else message_or_uid.metadata.uid
        known = self._pods.pop(uid)
        minimal = pb.Pod()
        minimal.metadata.name = known.metadata.name
        minimal.metadata.namespace = known.metadata.namespace
        minimal.metadata.uid = uid
        self._tell("DELETED", minimal if "INITIAL_SYNC_COMPLETE" in self._numbers else known)

    def drop_watches(self) -> None:
        """End every open watch, as the kubelet does with a client that reads too slowly."""
        for watch in self._watches:
            watch.put_nowait(None)

    @property
    def open_watches(self) -> int:
        """Watches that are open now."""
        return len(self._watches)

    # -- devices -------------------------------------------------------------------------------------------------------

    def hold(self, namespace: str, name: str, resource: str, device_ids: Sequence[str]) -> None:
        """Say that a pod's container holds these devices of a resource, replacing what it held of it."""
        self._held.setdefault((namespace, name), {})[resource] = list(device_ids)

    def claim(self, namespace: str, name: str, driver: str, device: str) -> None:
        """Say that a pod's container holds a device through a DRA claim."""
        self._claims.setdefault((namespace, name), []).append((driver, device))

    def release(self, namespace: str, name: str) -> None:
        """The pod holds nothing any more."""
        self._held.pop((namespace, name), None)
        self._claims.pop((namespace, name), None)

    # -- gRPC ----------------------------------------------------------------------------------------------------------

    def _tell(self, kind: str, message: pb.Pod) -> None:
        if self.send_events:
            event = pb.WatchPodsEvent(type=self._numbers[kind], pod=message.SerializeToString())
            for watch in self._watches:
                watch.put_nowait(event)

    async def _serve(
        self, socket: Path, service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> grpc.aio.Server:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(methods)),))
        server.add_insecure_port(f"unix://{socket}")
        await server.start()
        return server

    def _pods_methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {
            "ListPods": grpc.unary_unary_rpc_method_handler(
                self._list_pods,
                request_deserializer=pb.ListPodsRequest.FromString,
                response_serializer=pb.ListPodsResponse.SerializeToString,
            ),
            "WatchPods": grpc.unary_stream_rpc_method_handler(
                self._watch_pods,
                request_deserializer=pb.WatchPodsRequest.FromString,
                response_serializer=pb.WatchPodsEvent.SerializeToString,
            ),
        }

    def _resources_methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {
            "List": grpc.unary_unary_rpc_method_handler(
                self._list_resources,
                request_deserializer=pb.ListPodResourcesRequest.FromString,
                response_serializer=pb.ListPodResourcesResponse.SerializeToString,
            ),
        }

    async def _begin(self, method: str, context: Any) -> None:
        self.calls[method] += 1
        if self.refuse is not None:
            await context.abort(self.refuse, "the kubelet is initializing")

    async def _list_pods(self, _request: pb.ListPodsRequest, context: Any) -> pb.ListPodsResponse:
        await self._begin("ListPods", context)
        return pb.ListPodsResponse(pods=[message.SerializeToString() for message in self._pods.values()])

    async def _watch_pods(self, _request: pb.WatchPodsRequest, context: Any) -> AsyncIterator[pb.WatchPodsEvent]:
        await self._begin("WatchPods", context)
        if self.before_watch is not None:
            self.before_watch()
        queue: asyncio.Queue[pb.WatchPodsEvent | None] = asyncio.Queue()
        for message in self._pods.values():
            queue.put_nowait(pb.WatchPodsEvent(type=self._numbers["ADDED"], pod=message.SerializeToString()))
        if "INITIAL_SYNC_COMPLETE" in self._numbers:
            queue.put_nowait(pb.WatchPodsEvent(type=self._numbers["INITIAL_SYNC_COMPLETE"]))
        self._watches.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "watch client channel closed")
        finally:
            self._watches.discard(queue)

    async def _list_resources(self, _request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        await self._begin("List", context)
        answer = pb.ListPodResourcesResponse()
        for namespace, name in dict.fromkeys([*self._held, *self._claims]):
            container = answer.pod_resources.add(name=name, namespace=namespace).containers.add(name="server")
            for resource, device_ids in self._held.get((namespace, name), {}).items():
                container.devices.add(resource_name=resource, device_ids=device_ids)
            for driver, device in self._claims.get((namespace, name), []):
                claims = container.dynamic_resources.add(claim_name=f"{name}-gpu", claim_namespace=namespace)
                claims.claim_resources.add(driver_name=driver, pool_name="node-a", device_name=device)
        return answer

"""Lists and watches the pods of this node through the kubelet's Pods API.

Source: KEP-4188; kubernetes.io/docs/reference/node/kubelet-pods-api (beta and on by default in 1.37, alpha in 1.35).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from google.protobuf.message import DecodeError

from zerohop_agent._pb import kubelet_pb2 as pb
from zerohop_agent.kubelet.channel import KubeletError, kubelet_error, open_channel
from zerohop_agent.kubelet.pods import Pod, pod_from_bytes

#: Where the socket is: since 1.37, and in the alpha of 1.35. The first that exists is used.
POD_SOCKETS = (Path("/var/lib/kubelet/pods-api/pods-api.sock"), Path("/var/lib/kubelet/pods/kubelet.sock"))

_LIST = "/v1alpha1.Pods/ListPods"
_WATCH = "/v1alpha1.Pods/WatchPods"


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

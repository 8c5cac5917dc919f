"""The node's pods from the kubelet itself, in discovery's own terms: no API server, no permission, no watch storm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from zerohop_agent.discovery.clock import Clock
from zerohop_agent.discovery.pods import Pod, make_pod
from zerohop_agent.kubelet import pods as kubelet
from zerohop_agent.kubelet.channel import KubeletError
from zerohop_agent.kubelet.follow_pods import follow_pods
from zerohop_agent.kubelet.pods_api import PodsClient
from zerohop_process import log
from zerohop_process.log import OncePerChange

_log = log.get("discovery")


class KubeletPods:
    """Follows the kubelet's pods; `objects` is by uid, as a `Reflector`'s."""

    def __init__(self, socket: Path, clock: Clock, on_change: Callable[[], None]) -> None:
        self.objects: dict[str, Pod] = {}
        self.synced_at: float | None = None
        self.trouble: str | None = None
        self._socket = socket
        self._clock = clock
        self._on_change = on_change
        self._said = OncePerChange()

    async def run(self) -> None:
        """Follows until cancelled."""
        async for pods in follow_pods(self._socket, on_error=self._error):
            found = {pod.uid: pod for raw in pods if (pod := _pod(raw)) is not None}
            changed = found != self.objects or self.synced_at is None
            self.objects.clear()
            self.objects.update(found)
            self.synced_at = self._clock.monotonic()
            if changed:
                self._on_change()

    def _error(self, error: KubeletError | None) -> None:
        if error is None:
            self.synced_at = self._clock.monotonic()
        self.trouble = str(error) if error is not None else None
        message = (
            f"the kubelet's Pods API: {error}; what was known is kept" if error else "the kubelet's Pods API answers"
        )
        self._said.log(_log, "warning" if error else "info", "kubelet", self.trouble, message)


async def why_unusable(socket: Path, timeout_s: float = 3.0) -> str | None:
    """None when the kubelet lists its pods at `socket`, else why it does not."""
    client = PodsClient(socket, timeout_s=timeout_s)
    try:
        await client.list()
    except KubeletError as error:
        return str(error)
    finally:
        await client.close()
    return None


def _pod(raw: kubelet.Pod) -> Pod | None:
    return make_pod(
        uid=raw.uid,
        namespace=raw.namespace,
        name=raw.name,
        node=raw.node_name,
        labels=raw.labels,
        annotations=raw.annotations,
        ips=list(raw.ips),
        ready=raw.ready,
        terminating=raw.deleting,
        phase=raw.phase,
        created=raw.created_s,
    )

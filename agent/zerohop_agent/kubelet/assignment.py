"""Which GPUs serve which endpoint in Kubernetes: between discovery, which knows pods, and the runtime.

Discovery hands its endpoints to `apply` here, and what goes on to the runtime names the GPUs that each pod holds. It is
said again when either side changes. Under time-slicing one GPU belongs to several pods, and a pod may hold several.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerohop_agent.endpoints import EndpointSet, EndpointSpec
from zerohop_agent.kubelet.channel import KubeletError
from zerohop_agent.kubelet.podresources import (
    POD_RESOURCES_SOCKET,
    PodName,
    PodResourcesClient,
    gpu_names,
    gpus_of_pods,
    unknown_gpu_ids,
)
from zerohop_process.log import OncePerChange, event, get

_logger = get("agent.gpu_assignment")
_RANK = re.compile(r"-rank-\d+$")


class GpuAssignment:
    """Fills `EndpointSpec.gpus` of this node's pods; an endpoint that already names its GPUs keeps them.

    `boards` returns the boards that are known now, as in the cold map's `gpus`. The kubelet is asked every `interval_s`
    and soon after a pod has come or gone; while it does not answer the last assignment stays.
    """

    def __init__(
        self,
        apply: Callable[[EndpointSet], None],
        boards: Callable[[], Sequence[Mapping[str, Any]]],
        socket: Path = POD_RESOURCES_SOCKET,
        *,
        interval_s: float = 5.0,
        soon_s: float = 0.5,
    ) -> None:
        self._apply = apply
        self._boards = boards
        self._socket = socket
        self._interval_s = interval_s
        self._soon_s = soon_s
        self._latest = EndpointSet()
        self._pods: frozenset[PodName] = frozenset()
        self._held: dict[PodName, tuple[str, ...]] = {}
        self._changed = asyncio.Event()
        self._once = OncePerChange()

    def apply(self, endpoints: EndpointSet) -> None:
        """Take over what discovery knows now and hand it on."""
        self._latest = endpoints
        pods = frozenset(_pod(spec) for spec in endpoints.endpoints if not spec.origin)
        if pods != self._pods:
            self._pods = pods
            self._changed.set()
        self._hand_on()

    async def run(self) -> None:
        """Keep asking the kubelet until cancelled."""
        client = PodResourcesClient(self._socket)
        try:
            while True:
                await self._ask(client)
                try:
                    async with asyncio.timeout(self._interval_s):
                        await self._changed.wait()
                    # A pod is Ready a moment after it got its devices; several often come at once.
                    await asyncio.sleep(self._soon_s)
                except TimeoutError:
                    pass
                self._changed.clear()
        finally:
            await client.close()

    async def _ask(self, client: PodResourcesClient) -> None:
        gpus = gpu_names(self._boards())
        try:
            claims = await client.list()
        except KubeletError as error:
            if self._once.changed("socket", error.code):
                event(_logger, "warning", "kubelet does not say who holds which GPU", error=str(error))
            return
        if self._once.changed("socket", "ok"):
            event(_logger, "info", "kubelet says who holds which GPU", socket=str(self._socket))
        strange = unknown_gpu_ids(claims, gpus) if gpus else ()
        if self._once.changed("strange", ",".join(strange)) and strange:
            event(_logger, "warning", "devices that fit no GPU of this node", ids=",".join(strange[:8]))
        held = gpus_of_pods(claims, gpus)
        if held != self._held:
            self._held = held
            self._hand_on()

    def _hand_on(self) -> None:
        endpoints = tuple(self._with_gpus(spec) for spec in self._latest.endpoints)
        self._apply(replace(self._latest, endpoints=endpoints))

    def _with_gpus(self, spec: EndpointSpec) -> EndpointSpec:
        if spec.gpus or spec.origin:
            return spec
        held = self._held.get(_pod(spec), ())
        return replace(spec, gpus=held) if held else spec


def _pod(spec: EndpointSpec) -> PodName:
    """Discovery says the pod, or names the endpoint `namespace/pod-rank-N`."""
    namespace, _, name = spec.pod.partition("/") if spec.pod else _RANK.sub("", spec.name).partition("/")
    return namespace, name

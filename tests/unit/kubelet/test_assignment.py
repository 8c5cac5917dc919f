"""Endpoints of discovery get the GPUs that the kubelet says their pods hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.kubelet_server import KubeletServer
from support.waiting import eventually_async
from zerohop_agent.endpoints import EndpointSet, EndpointSpec
from zerohop_agent.kubelet.assignment import GpuAssignment
from zerohop_process.address import Address

BOARDS = [{"uuid": f"GPU-{letter}", "index": index, "mig": None} for index, letter in enumerate("abcd")]


def endpoint(name: str, rank: int = 0, **arguments: Any) -> EndpointSpec:
    address = Address("10.0.0.1", 8000 + rank)
    return EndpointSpec(key=f"{name}/{rank}", address=address, name=f"{name}-rank-{rank}", **arguments)


class Assigned:
    """What the runtime was told last."""

    def __init__(self) -> None:
        self.latest = EndpointSet()
        self.boards = list(BOARDS)

    def apply(self, endpoints: EndpointSet) -> None:
        self.latest = endpoints

    def gpus(self) -> dict[str, tuple[str, ...]]:
        return {spec.name: spec.gpus for spec in self.latest.endpoints}


@asynccontextmanager
async def running(kubelet: KubeletServer, interval_s: float = 30.0) -> AsyncIterator[tuple[Assigned, GpuAssignment]]:
    assigned = Assigned()
    assignment = GpuAssignment(
        assigned.apply, lambda: assigned.boards, kubelet.resources_socket, interval_s=interval_s, soon_s=0.0
    )
    task = asyncio.create_task(assignment.run())
    try:
        yield assigned, assignment
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_every_port_of_a_pod_gets_its_gpus_and_one_gpu_may_serve_several_pods(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet, running(kubelet) as (assigned, assignment):
        kubelet.hold("llm", "vllm-0", "nvidia.com/gpu", ["GPU-a", "GPU-b"])
        kubelet.hold("llm", "vllm-1", "nvidia.com/gpu.shared", ["GPU-b::1"])
        assignment.apply(
            EndpointSet(
                (endpoint("llm/vllm-0"), endpoint("llm/vllm-0", 1), endpoint("llm/vllm-1"), endpoint("llm/cpu"))
            )
        )
        await eventually_async(
            lambda: (
                assigned.gpus()
                == {
                    "llm/vllm-0-rank-0": ("GPU-a", "GPU-b"),
                    "llm/vllm-0-rank-1": ("GPU-a", "GPU-b"),
                    "llm/vllm-1-rank-0": ("GPU-b",),
                    "llm/cpu-rank-0": (),
                }
            )
        )


async def test_what_discovery_says_goes_on_at_once_with_the_gpus_that_are_known(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet, running(kubelet) as (assigned, assignment):
        kubelet.hold("llm", "a", "nvidia.com/gpu", ["GPU-a"])
        assignment.apply(EndpointSet((endpoint("llm/a"),)))
        assert assigned.gpus() == {"llm/a-rank-0": ()}
        await eventually_async(lambda: assigned.gpus() == {"llm/a-rank-0": ("GPU-a",)})
        asked = kubelet.calls["List"]
        assignment.apply(EndpointSet((endpoint("llm/a", draining=True),)))
        assert assigned.latest.endpoints[0].gpus == ("GPU-a",)
        assert assigned.latest.endpoints[0].draining
        assert kubelet.calls["List"] == asked, "the pods are the same: no need to ask"


async def test_boards_that_are_found_later_are_assigned_then(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet, running(kubelet, interval_s=0.02) as (assigned, assignment):
        assigned.boards = []
        kubelet.hold("llm", "a", "nvidia.com/gpu", ["GPU-a"])
        assignment.apply(EndpointSet((endpoint("llm/a"),)))
        await eventually_async(lambda: kubelet.calls["List"] >= 3)
        assert assigned.gpus() == {"llm/a-rank-0": ()}
        assigned.boards = list(BOARDS)
        await eventually_async(lambda: assigned.gpus() == {"llm/a-rank-0": ("GPU-a",)})


async def test_the_pod_that_discovery_says_counts_more_than_the_name(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet, running(kubelet) as (assigned, assignment):
        kubelet.hold("llm", "a-rank-1", "nvidia.com/gpu", ["GPU-a"])
        assignment.apply(EndpointSet((endpoint("anything", pod="llm/a-rank-1"),)))
        await eventually_async(lambda: assigned.gpus() == {"anything-rank-0": ("GPU-a",)})


async def test_static_gpus_and_endpoints_of_other_nodes_are_left_alone(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet, running(kubelet) as (assigned, assignment):
        kubelet.hold("llm", "a", "nvidia.com/gpu", ["GPU-a"])
        kubelet.hold("llm", "b", "nvidia.com/gpu", ["GPU-b"])
        kubelet.hold("llm", "c", "nvidia.com/gpu", ["GPU-c"])
        assignment.apply(
            EndpointSet((endpoint("llm/a", gpus=("GPU-d",)), endpoint("llm/b", origin="other-node"), endpoint("llm/c")))
        )
        await eventually_async(lambda: assigned.gpus()["llm/c-rank-0"] == ("GPU-c",))
        assert assigned.gpus()["llm/a-rank-0"] == ("GPU-d",)
        assert assigned.gpus()["llm/b-rank-0"] == ()


async def test_a_kubelet_that_is_away_changes_nothing(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet, running(kubelet, interval_s=0.02) as (assigned, assignment):
        kubelet.hold("llm", "a", "nvidia.com/gpu", ["GPU-a"])
        assignment.apply(EndpointSet((endpoint("llm/a"),)))
        await eventually_async(lambda: assigned.gpus() == {"llm/a-rank-0": ("GPU-a",)})
        await kubelet.stop()
        assignment.apply(EndpointSet((endpoint("llm/a"), endpoint("llm/b"))))
        assert assigned.gpus() == {"llm/a-rank-0": ("GPU-a",), "llm/b-rank-0": ()}
        kubelet.hold("llm", "b", "nvidia.com/gpu", ["GPU-b"])
        await kubelet.start()
        await eventually_async(lambda: assigned.gpus()["llm/b-rank-0"] == ("GPU-b",))

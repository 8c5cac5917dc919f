"""PodResources over a real Unix socket, and every form of device id that is known in the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.kubelet_server import KubeletServer
from support.waiting import eventually_async
from zerohop_agent.kubelet.channel import KubeletError
from zerohop_agent.kubelet.podresources import (
    PodResourcesClient,
    gpu_names,
    gpu_uuid,
    gpus_of_pods,
    unknown_gpu_ids,
)

#: Board 1 has minor number 0: indices and minors are crossed on purpose. Board 2 is cut into two instances.
BOARDS = [
    {"uuid": "GPU-aaaa", "index": 0, "minor": 1, "mig": None},
    {"uuid": "GPU-bbbb", "index": 1, "minor": 0, "mig": None},
    {"uuid": "GPU-cccc", "index": 2, "minor": 2, "mig": {"mode": "enabled"}},
    {"uuid": "MIG-1111", "index": 2, "mig": {"parent": "GPU-cccc", "gi_id": 3, "mig_profile": "1g.10gb"}},
    {"uuid": "MIG-2222", "index": 2, "mig": {"parent": "GPU-cccc", "gi_id": 5, "mig_profile": "1g.10gb"}},
]
GPUS = gpu_names(BOARDS)


@pytest.mark.parametrize(
    ("device_id", "uuid"),
    [
        ("GPU-aaaa", "GPU-aaaa"),
        ("MIG-1111", "MIG-1111"),
        ("GPU-aaaa::3", "GPU-aaaa"),
        ("MIG-2222::0", "MIG-2222"),
        ("MIG-GPU-cccc/5/0", "MIG-2222"),
        ("MIG-GPU-cccc/9/0", "GPU-cccc"),
        ("1", "GPU-bbbb"),
        ("nvidia0", "GPU-bbbb"),
        ("nvidia2/gi3", "MIG-1111"),
        ("nvidia2/gi5/vgpu1", "MIG-2222"),
        ("nvidia1/vgpu0", "GPU-aaaa"),
        ("gpu-0", "GPU-bbbb"),
        ("nvidia.com/gpu=1", "GPU-bbbb"),
        ("k8s.gpu.nvidia.com/device=gpu-1", "GPU-aaaa"),
        ("GPU-ffff", None),
        ("GPU-ffff::1", None),
        ("MIG-GPU-ffff/1/0", None),
        ("nvidia9", None),
        ("nvidia2/gi8", None),
        ("0000:3b:00.0", None),
        ("", None),
        ("7", None),
    ],
)
def test_every_form_of_device_id(device_id: str, uuid: str | None) -> None:
    assert gpu_uuid(device_id, GPUS) == uuid


async def test_pods_and_gpus_are_many_to_many(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet:
        kubelet.hold("llm", "a", "nvidia.com/gpu.shared", ["GPU-aaaa::0"])
        kubelet.hold("llm", "b", "nvidia.com/gpu.shared", ["GPU-aaaa::1", "GPU-bbbb::0"])
        kubelet.hold("llm", "b", "rdma/hca", ["mlx5_0"])
        kubelet.claim("llm", "c", "gpu.nvidia.com", "gpu-0")
        kubelet.hold("other", "a", "nvidia.com/mig-1g.10gb", ["MIG-1111"])
        kubelet.hold("other", "cpu", "example.com/fpga", ["7f"])
        client = PodResourcesClient(kubelet.resources_socket)
        claims = await client.list()
        await client.close()
    assert gpus_of_pods(claims, GPUS) == {
        ("llm", "a"): ("GPU-aaaa",),
        ("llm", "b"): ("GPU-aaaa", "GPU-bbbb"),
        ("llm", "c"): ("GPU-bbbb",),
        ("other", "a"): ("MIG-1111",),
    }
    assert unknown_gpu_ids(claims, GPUS) == ()


async def test_a_gpu_that_we_do_not_know_is_reported_and_maps_to_nothing(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet:
        kubelet.hold("llm", "a", "nvidia.com/gpu", ["GPU-gone"])
        client = PodResourcesClient(kubelet.resources_socket)
        claims = await client.list()
        assert gpus_of_pods(claims, GPUS) == {}
        assert unknown_gpu_ids(claims, GPUS) == ("GPU-gone",)
        kubelet.release("llm", "a")
        assert await client.list() == ()
        await client.close()


async def test_a_restarted_kubelet_is_reached_again_by_the_same_client(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet:
        kubelet.hold("llm", "a", "nvidia.com/gpu", ["GPU-aaaa"])
        client = PodResourcesClient(kubelet.resources_socket)
        await client.list()
        await kubelet.stop()
        with pytest.raises(KubeletError):
            await client.list()
        await kubelet.start()

        async def held() -> dict[tuple[str, str], tuple[str, ...]]:
            try:
                return gpus_of_pods(await client.list(), GPUS)
            except KubeletError:
                return {}

        assert await eventually_async(held) == {("llm", "a"): ("GPU-aaaa",)}
        await client.close()

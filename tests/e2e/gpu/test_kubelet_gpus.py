"""Pods and their GPUs from the kubelet's two sockets: a broken board drains the pods that hold it, and no other."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from support.kubelet_server import KubeletServer, pod
from support.nvml import Boards, uuid_of
from support.processes import Processes, free_port, zerohop_command
from support.waiting import eventually_async
from zerohop_console import snapshot_view
from zerohop_snapshot import SnapshotReader

pytestmark = pytest.mark.e2e


async def test_a_shared_board_drains_every_pod_on_it(run: Processes, tmp_path: Path) -> None:
    boards = Boards(tmp_path, count=4)
    port = free_port()
    addresses = {"vllm-0": "127.0.0.2", "vllm-1": "127.0.0.3", "vllm-2": "127.0.0.4"}
    for address in addresses.values():
        run.start(*zerohop_command("mock-server", "--listen", f"{address}:{port}"))
    async with KubeletServer(tmp_path) as kubelet:
        for name, address in addresses.items():
            kubelet.set_pod(pod(name, namespace="llm", ip=address, labels={"app": "vllm"}, ports={"http": port}))
        kubelet.hold("llm", "vllm-0", "nvidia.com/gpu", [uuid_of(0)])
        kubelet.hold("llm", "vllm-1", "nvidia.com/gpu.shared", [f"{uuid_of(1)}::0"])
        kubelet.hold("llm", "vllm-2", "nvidia.com/gpu.shared", [f"{uuid_of(1)}::1", f"{uuid_of(2)}::0"])
        config = tmp_path / "agent.yaml"
        config.write_text(
            json.dumps(
                {
                    "gpu": {
                        "interval": "200ms",
                        "slow_interval": "500ms",
                        "pod_resources_socket": str(kubelet.resources_socket),
                        "pod_resources_interval": "200ms",
                        "condition": {"xid_hold": "300ms", "heal_after": "300ms"},
                    }
                }
            )
        )
        agent = run.start(
            *zerohop_command("agent", "--config", config, "--shm-dir", tmp_path / "shm", "--metrics-address", "off"),
            *("--discovery", "kubelet", "--kubelet-socket", kubelet.pods_socket, "--pool", "llm/chat"),
            *("--pod-selector", "app=vllm", "--target-ports", str(port)),
            env={**boards.environment(), "NODE_NAME": "node-a", "POD_NAMESPACE": "llm"},
        )  # fmt: skip
        reader = SnapshotReader(tmp_path / "shm")

        def endpoints() -> dict[str, dict[str, Any]]:
            snapshot = reader.read()
            if snapshot is None:
                return {}
            shown = snapshot_view.view(snapshot, [None] * len(snapshot.column("flags")), time.monotonic_ns())
            return {entry["address"].partition(":")[0]: entry for entry in shown["endpoints"] if entry["address"]}

        def gpus() -> list[list[str]]:
            return [endpoints()[address]["gpus"] for address in addresses.values()]

        try:
            await eventually_async(
                lambda: (
                    len(endpoints()) == 3
                    and gpus() == [[uuid_of(0)], [uuid_of(1)], [uuid_of(1), uuid_of(2)]]
                    and not any(entry["flags"] for entry in endpoints().values())
                ),
                20,
            )
        except (AssertionError, KeyError) as error:
            raise AssertionError(f"{error}\n{endpoints()}\n{agent.log}") from None
        boards.xid(1, 95)
        await eventually_async(
            lambda: (
                [entry["flags"] for entry in (endpoints()[address] for address in addresses.values())]
                == [[], ["drain"], ["drain"]]
            ),
            timeout=2,
        )
        # The pod moves to another board: it takes requests again, its neighbour does not.
        kubelet.hold("llm", "vllm-1", "nvidia.com/gpu.shared", [f"{uuid_of(3)}::0"])
        await eventually_async(lambda: endpoints()["127.0.0.3"]["flags"] == [], 15)
        assert endpoints()["127.0.0.4"]["reasons"]["drain"] == "xid"
        agent.stop()

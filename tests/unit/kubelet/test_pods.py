"""The Pods API client against a server on a real Unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from support.kubelet_server import FIRST_NUMBERS, LATER_NUMBERS, KubeletServer, pod
from support.waiting import eventually_async
from zerohop_agent.kubelet.channel import KubeletError
from zerohop_agent.kubelet.follow_pods import PodTable, follow_pods
from zerohop_agent.kubelet.pods import Pod, pod_from_bytes
from zerohop_agent.kubelet.pods_api import PodsClient


class Following:
    """`follow_pods` in a task; `until(predicate)` waits for the first set of pods that fits."""

    def __init__(self, socket: Path, relist_s: float = 60.0) -> None:
        self.errors: list[KubeletError | None] = []
        self._sets: asyncio.Queue[tuple[Pod, ...]] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(socket, relist_s))

    async def _run(self, socket: Path, relist_s: float) -> None:
        pods = follow_pods(socket, relist_s=relist_s, retry_s=0.01, max_retry_s=0.05, on_error=self.errors.append)
        async with aclosing(pods):
            async for found in pods:
                self._sets.put_nowait(found)

    async def until(self, names: set[str], *, ready: bool | None = None) -> tuple[Pod, ...]:
        async with asyncio.timeout(10):
            while True:
                found = await self._sets.get()
                if {entry.name for entry in found} == names and (
                    ready is None or all(entry.ready == ready for entry in found)
                ):
                    return found

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def following(socket: Path, relist_s: float = 60.0) -> AsyncIterator[Following]:
    follower = Following(socket, relist_s)
    try:
        yield follower
    finally:
        await follower.stop()


async def test_list_returns_what_discovery_needs_of_a_pod(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet:
        kubelet.set_pod(
            pod(
                "vllm-0",
                namespace="llm",
                uid="u-1",
                ips=("10.1.0.7", "fd00::7"),
                ports={"http": 8000, "rank1": 8001},
                labels={"app": "vllm"},
                annotations={"a/b": "c"},
                node="gpu-1",
            )
        )
        client = PodsClient(kubelet.pods_socket)
        (found,) = await client.list()
        await client.close()
    assert (found.uid, found.namespace, found.name, found.node_name) == ("u-1", "llm", "vllm-0", "gpu-1")
    assert found.ips == ("10.1.0.7", "fd00::7")
    assert [(port.name, port.port) for port in found.containers[0].ports] == [("http", 8000), ("rank1", 8001)]
    assert found.labels == {"app": "vllm"}
    assert found.annotations == {"a/b": "c"}
    assert found.ready
    assert not found.deleting


def test_a_pod_that_is_being_deleted_or_has_no_address_says_so() -> None:
    found = pod_from_bytes(pod("x", ip=None, ready=False, deleting=True, phase="Pending").SerializeToString())
    assert found.deleting
    assert found.ips == ()
    assert not found.ready


def test_ports_of_a_sidecar_count_and_those_of_an_init_container_do_not() -> None:
    message = pod("x", ports={"http": 8000})
    message.spec.init_containers.add(name="proxy", restart_policy="Always").ports.add(container_port=8080)
    message.spec.init_containers.add(name="download").ports.add(container_port=9090)
    found = pod_from_bytes(message.SerializeToString())
    assert [port.port for container in found.containers for port in container.ports] == [8000, 8080]


@pytest.mark.parametrize("numbers", [FIRST_NUMBERS, LATER_NUMBERS], ids=["alpha", "beta"])
async def test_follows_additions_changes_and_deletions(tmp_path: Path, numbers: dict[str, int]) -> None:
    async with KubeletServer(tmp_path, numbers=numbers) as kubelet:
        kubelet.set_pod(pod("a"))
        kubelet.set_pod(pod("b"))
        async with following(kubelet.pods_socket) as follower:
            await follower.until({"a", "b"}, ready=True)
            kubelet.set_pod(pod("a", ready=False))
            kubelet.set_pod(pod("b", ready=False))
            await follower.until({"a", "b"}, ready=False)
            kubelet.remove_pod(pod("a"))
            await follower.until({"b"})
            kubelet.set_pod(pod("c", ready=False))
            await follower.until({"b", "c"})


async def test_keeps_the_pods_over_a_kubelet_restart_and_notices_what_changed_meanwhile(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet:
        kubelet.set_pod(pod("a"))
        async with following(kubelet.pods_socket) as follower:
            await follower.until({"a"})
            await kubelet.stop()
            await eventually_async(lambda: follower.errors[-1] is not None)
            kubelet.remove_pod(pod("a"))
            kubelet.set_pod(pod("b"))
            await kubelet.start()
            await follower.until({"b"})
            assert follower.errors[-1] is None


async def test_a_dropped_watch_is_opened_again(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet:
        kubelet.set_pod(pod("a"))
        async with following(kubelet.pods_socket) as follower:
            await follower.until({"a"})
            await eventually_async(lambda: kubelet.open_watches == 1)
            kubelet.drop_watches()
            kubelet.set_pod(pod("b"))
            await follower.until({"a", "b"})


async def test_an_event_that_was_lost_is_found_by_the_next_list(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet:
        kubelet.set_pod(pod("a"))
        async with following(kubelet.pods_socket, relist_s=0.2) as follower:
            await follower.until({"a"})
            await eventually_async(lambda: kubelet.open_watches == 1)
            kubelet.send_events = False
            kubelet.set_pod(pod("b"))
            kubelet.remove_pod(pod("a"))
            await follower.until({"b"})


async def test_a_pod_that_goes_between_list_and_watch_is_not_kept(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet:
        kubelet.set_pod(pod("stays"))
        kubelet.set_pod(pod("goes"))
        kubelet.before_watch = lambda: kubelet.remove_pod(pod("goes")) if kubelet.calls["WatchPods"] == 1 else None
        async with following(kubelet.pods_socket) as follower:
            await follower.until({"stays", "goes"})
            await follower.until({"stays"})


async def test_waits_for_a_kubelet_that_is_starting(tmp_path: Path) -> None:
    async with KubeletServer(tmp_path) as kubelet:
        kubelet.refuse = grpc.StatusCode.FAILED_PRECONDITION
        kubelet.set_pod(pod("a"))
        async with following(kubelet.pods_socket) as follower:
            await eventually_async(lambda: follower.errors)
            error = follower.errors[0]
            assert error is not None
            assert error.code == "FAILED_PRECONDITION"
            kubelet.refuse = None
            await follower.until({"a"})


async def test_an_absent_socket_is_a_kubelet_error(tmp_path: Path) -> None:
    client = PodsClient(tmp_path / "nothing.sock")
    with pytest.raises(KubeletError, match=r"nothing\.sock: UNAVAILABLE"):
        await client.list()
    await client.close()


def _pod(uid: str, name: str = "") -> Pod:
    return pod_from_bytes(pod(name or uid, uid=uid).SerializeToString())


def test_a_list_does_not_undo_what_events_said_while_it_was_on_its_way() -> None:
    table = PodTable()
    table.seen(_pod("kept"))
    table.seen(_pod("left"))
    asked = table.mark()
    table.gone("left")
    table.seen(_pod("came"))
    assert not table.listed([_pod("kept"), _pod("left")], asked)
    assert set(table.pods) == {"kept", "came"}


def test_a_list_removes_what_it_does_not_name() -> None:
    table = PodTable()
    table.seen(_pod("old"))
    assert table.listed([_pod("new")], table.mark())
    assert set(table.pods) == {"new"}

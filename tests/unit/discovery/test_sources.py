"""Which source this node's pods and those of other nodes come from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from support import kubelet_server
from support.apiserver import ApiServer, pod, pool
from support.kubelet_server import KubeletServer
from support.waiting import eventually_async
from zerohop_agent.discovery.resources import POOLS_V1
from zerohop_agent.discovery.session import Discovery
from zerohop_agent.discovery.settings import DiscoverySettings, StaticPool
from zerohop_process.errors import ConfigError

Watching = Callable[..., Any]
LABELS = {"app": "vllm"}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.install(POOLS_V1)
        server.put(pool("llama"))
        server.put(pod("far", ip="10.9.0.1", node="node-b"))
        yield server


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[KubeletServer]:
    async with KubeletServer(tmp_path) as kubelet:
        kubelet.set_pod(kubelet_server.pod("a", ip="10.1.0.1", labels=LABELS))
        yield kubelet


def asked(server: ApiServer) -> set[str | None]:
    return {seen.params.get("fieldSelector") for seen in server.requests if seen.path.endswith("/pods")}


@pytest.mark.parametrize("source", ["auto", "kubelet"])
async def test_a_pool_across_nodes_takes_the_nodes_own_pods_from_its_kubelet(
    source: str, server: ApiServer, kubelet: KubeletServer, watching: Watching
) -> None:
    server.put(pod("a", ip="10.1.0.1", ready=False))  # the API server hears of it later than the kubelet
    async with watching(server, source=source, scope="pool", kubelet_socket=kubelet.pods_socket) as watched:
        await watched.becomes("10.1.0.1:8000", "10.9.0.1:8000")
        origins = {str(spec.address): spec.origin for spec in watched.sets[-1].endpoints}
        assert origins == {"10.1.0.1:8000": "", "10.9.0.1:8000": "node-b"}
        assert asked(server) == {"spec.nodeName!=node-a"}
        # While the API server is away, what the kubelet says still counts at once.
        await server.stop()
        kubelet.set_pod(kubelet_server.pod("b", ip="10.1.0.2", labels=LABELS))
        await watched.becomes("10.1.0.1:8000", "10.1.0.2:8000", "10.9.0.1:8000")
        assert {"kubelet", "pods"} <= set(watched.discovery.sources.states())


async def test_one_nodes_pods_come_from_its_kubelet_alone(
    server: ApiServer, kubelet: KubeletServer, watching: Watching
) -> None:
    async with watching(server, source="auto", kubelet_socket=kubelet.pods_socket) as watched:
        await watched.becomes("10.1.0.1:8000")
        assert not asked(server)


async def test_a_kubelet_that_does_not_answer_keeps_no_pod_away(
    server: ApiServer, kubelet: KubeletServer, watching: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    """The feature is switched off again, or the socket is another user's: its file is there all the same."""
    kubelet.refuse = grpc.StatusCode.UNIMPLEMENTED
    server.put(pod("a", ip="10.1.0.1"))
    async with watching(server, source="auto", scope="pool", kubelet_socket=kubelet.pods_socket) as watched:
        await watched.becomes("10.1.0.1:8000", "10.9.0.1:8000")
        assert asked(server) == {None}
        assert "kubelet" not in watched.discovery.sources.states()
    assert "Pods come from the API server" in caplog.text


async def test_neither_server_nor_crd_is_needed_for_a_pool_of_flags(kubelet: KubeletServer, watching: Watching) -> None:
    static = StaticPool("default", "static", (("app", "vllm"),), (8000,))
    async with watching(None, source="auto", kubelet_socket=kubelet.pods_socket, static_pool=static) as watched:
        await watched.becomes("10.1.0.1:8000")
        assert watched.discovery.sources.client is None


async def test_a_kubelet_that_was_asked_for_must_have_a_socket(tmp_path: Path) -> None:
    settings = DiscoverySettings(source="kubelet", node_name="node-a", kubelet_socket=tmp_path / "none")
    with pytest.raises(ConfigError, match="there is no socket"):
        await Discovery(settings, lambda _: None).prepare()


async def test_without_a_nodes_name_nobodys_pods_are_taken_for_ours(
    server: ApiServer, kubelet: KubeletServer, watching: Watching
) -> None:
    """Else each of them would be there twice: once from the kubelet, once from the API server."""
    server.put(pod("a", ip="10.1.0.1"))
    async with watching(
        server, source="auto", scope="pool", node_name="", kubelet_socket=kubelet.pods_socket
    ) as watched:
        await watched.becomes("10.1.0.1:8000", "10.9.0.1:8000")
        await eventually_async(lambda: asked(server) == {None})

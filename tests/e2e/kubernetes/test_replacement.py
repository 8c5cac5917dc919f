"""Arguments that real Deployments give their picker start ours, and it serves the pool that they name."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.apiserver import ApiServer, pod, pool
from support.picker_client import health, picked
from support.ports import free_port
from support.processes import Process, Processes
from support.waiting import eventually
from zerohop_agent.discovery.resources import POOLS_V1, POOLS_V1ALPHA2
from zerohop_picker.tls import self_signed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]
HOST = "127.0.1.1"

CONFORMANCE = [
    "--pool-name",
    "primary-inference-pool",
    "--pool-namespace",
    "app",
    "--zap-encoder",
    "json",
    "--grpc-port",
    "{grpc}",
    "--grpc-health-port",
    "{health}",
]
KSERVE = [
    "--v=4",
    "--pool-name",
    "primary-inference-pool",
    "--pool-namespace",
    "app",
    "--pool-group",
    "inference.networking.x-k8s.io",
    "--zap-encoder",
    "json",
    "--grpc-port",
    "{grpc}",
    "--grpc-health-port",
    "{health}",
    "--metrics-port",
    "{metrics}",
    "--secure-serving",
    "--model-server-metrics-scheme",
    "http",
    "--model-server-metrics-https-insecure-skip-verify",
    "--cert-path",
    "{certificates}",
]
BENCHMARK = [
    "-pool-name",
    "primary-inference-pool",
    "-pool-namespace=app",
    "--config-file",
    "{config}",
    "--grpc-port",
    "{grpc}",
    "--grpc-health-port",
    "{health}",
    "--metrics-port",
    "{metrics}",
    "--secure-serving=false",
    "--health-checking=false",
    "--tracing=false",
    "--metrics-endpoint-auth=false",
    "--grpc-max-recv-msg-size",
    "10MiB",
    "--grpc-max-send-msg-size",
    "10MiB",
    "-v",
    "2",
]
#: As llm-d's standalone guide has it: no pool object at all.
SELECTOR = [
    "--endpoint-selector",
    "app=vllm",
    "--endpoint-target-ports",
    "{model}",
    "--pool-namespace",
    "app",
    "--grpc-port",
    "{grpc}",
    "--grpc-health-port",
    "{health}",
    "--metrics-port",
    "{metrics}",
    "--refresh-metrics-interval",
    "100ms",
    "--secure-serving=false",
]
PIPELINE = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: queue-scorer
  - type: kv-cache-utilization-scorer
  - type: prefix-cache-scorer
  - type: max-score-picker
  - type: single-profile-handler
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: queue-scorer, weight: 2}
      - {pluginRef: kv-cache-utilization-scorer, weight: 2}
      - {pluginRef: prefix-cache-scorer, weight: 3}
      - {pluginRef: max-score-picker}
"""


def fill(words: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    return [word.format(**values) for word in words]


@pytest.mark.parametrize(
    ("words", "tls"),
    [(CONFORMANCE, True), (KSERVE, True), (BENCHMARK, False), pytest.param(SELECTOR, False, marks=pytest.mark.slow)],
    ids=["conformance", "kserve", "benchmark", "selector"],
)  # fmt: skip
async def test_the_image_can_be_swapped(words: list[str], tls: bool, run: Processes, tmp_path: Path) -> None:
    values: dict[str, Any] = {name: free_port() for name in ("grpc", "health", "metrics", "model")}
    values |= {"config": tmp_path / "pipeline.yaml", "certificates": tmp_path / "tls"}
    values["config"].write_text(PIPELINE)
    pair = self_signed()
    values["certificates"].mkdir()
    (values["certificates"] / "tls.crt").write_bytes(pair.certificate)
    (values["certificates"] / "tls.key").write_bytes(pair.key)
    async with ApiServer() as server:
        server.install(POOLS_V1, POOLS_V1ALPHA2)
        body = pool("primary-inference-pool", ports=(values["model"],), namespace="app")
        if words is KSERVE:
            selector = {
                "selector": {"app": "vllm"},
                "targetPortNumber": values["model"],
                "extensionRef": {"name": "epp"},
            }
            body = {**body, "apiVersion": "inference.networking.x-k8s.io/v1alpha2", "spec": selector}
        server.put(body)
        server.put(pod("vllm-0", ip=HOST, node="anywhere", namespace="app"))

        def start() -> Process:
            run.zerohop("mock-server", "--listen", f"{HOST}:{values['model']}")
            return run.start(
                sys.executable, "-m", "zerohop_console.main", *fill(words, values),
                "--shm-dir", tmp_path / "shm", *([] if "{metrics}" in words else ["--metrics-address", "127.0.0.1:0"]),
                env={"KUBECONFIG": str(server.kubeconfig(tmp_path))},
            )  # fmt: skip

        child = await asyncio.to_thread(start)

        def serves() -> bool:
            assert child.returncode is None, child.log
            return health(values["health"], "inference-extension") == 1

        await asyncio.to_thread(eventually, serves, 30)
        assert await asyncio.to_thread(health, values["health"], "liveness") == 1
        destination = await asyncio.to_thread(lambda: picked(values["grpc"], tls=tls))
        assert destination.split(",")[0] == f"{HOST}:{values['model']}"
        await asyncio.to_thread(child.stop, 20)

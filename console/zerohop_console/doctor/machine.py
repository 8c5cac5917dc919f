"""This node: NVML, and the kubelet's sockets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from zerohop_console.doctor.finding import Finding, fail, ok, skip, warn

#: Asked in a process of its own: a hung driver cannot be cancelled (a call can stay in the kernel for days).
_NVML_PROBE = """
import ctypes, sys
try:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
except OSError as error:
    print("absent", error); sys.exit()
code = nvml.nvmlInit_v2() if hasattr(nvml, "nvmlInit_v2") else nvml.nvmlInitWithFlags(0)
if code:
    print("error", code); sys.exit()
count = ctypes.c_uint()
code = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
print("error" if code else "count", code or count.value)
"""
_NVML_TIMEOUT_S = 8.0
_KUBELET_TIMEOUT_S = 3.0
_NVML_ERRORS = {
    "9": "the driver is not loaded",
    "18": "driver and library versions differ: the driver was updated without a reboot or a reload",
    "15": "a GPU is lost",
    "4": "no permission",
}


def check_nvml(python: str = sys.executable) -> Iterator[Finding]:
    """Findings about the NVIDIA driver as this process would see it."""
    try:
        done = subprocess.run(
            [python, "-c", _NVML_PROBE], capture_output=True, text=True, timeout=_NVML_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        yield fail(
            "nvml",
            f"the driver does not answer within {_NVML_TIMEOUT_S:g} s",
            "look for Xid messages in dmesg; a hung driver needs a reboot. The agent goes on without GPU values",
        )
        return
    word, _, rest = done.stdout.strip().partition(" ")
    if word == "count":
        yield (
            ok("nvml", f"{rest} GPUs")
            if rest != "0"
            else warn(
                "nvml",
                "the driver shows no GPU",
                "in a pod: set NVIDIA_VISIBLE_DEVICES=all and runtimeClassName: nvidia",
            )
        )
    elif word == "absent":
        yield skip(
            "nvml",
            "libnvidia-ml.so.1 is not here: no NVIDIA driver, or the pod lacks it (runtimeClassName: nvidia, "
            "NVIDIA_DRIVER_CAPABILITIES=utility); use --gpu off where there is none",
        )
    else:
        why = _NVML_ERRORS.get(rest, f"error {rest}")
        yield fail("nvml", f"NVML does not start: {why}", "run nvidia-smi on the host; it fails the same way")


async def check_kubelet(pod_resources: Path | None, pods_api: Path | None) -> AsyncIterator[Finding]:
    """Findings about the kubelet's sockets; None: the usual places."""
    from zerohop_agent.discovery.settings import find_pods_socket
    from zerohop_agent.kubelet.channel import KubeletError
    from zerohop_agent.kubelet.podresources import POD_RESOURCES_SOCKET, PodResourcesClient
    from zerohop_agent.kubelet.pods_api import POD_SOCKETS, PodsClient

    resources_socket = pod_resources or POD_RESOURCES_SOCKET
    if _present(resources_socket):
        client = PodResourcesClient(resources_socket, timeout_s=_KUBELET_TIMEOUT_S)
        try:
            claims = await client.list()
            yield ok("kubelet", f"PodResources: {len(claims)} device assignments")
        except KubeletError as error:
            yield _kubelet_failure("PodResources", resources_socket, error)
        finally:
            await client.close()
    else:
        yield skip("kubelet", f"no PodResources socket at {resources_socket}: which pod holds which GPU stays unknown")
    where = pods_api or POD_SOCKETS[0]
    try:
        pods_socket = find_pods_socket(pods_api)
    except PermissionError as error:
        yield _kubelet_failure("Pods API", where, error)
        return
    if pods_socket is None:
        yield skip(
            "kubelet",
            f"no Pods API socket at {where} (on by default from Kubernetes 1.37): pods come from the API server",
        )
        return
    pods_client = PodsClient(pods_socket, timeout_s=_KUBELET_TIMEOUT_S)
    try:
        pods = await pods_client.list()
        yield ok("kubelet", f"Pods API: {len(pods)} pods on this node")
    except KubeletError as error:
        yield _kubelet_failure("Pods API", pods_socket, error)
    finally:
        await pods_client.close()


def _present(path: Path) -> bool:
    try:
        return path.is_socket()
    except PermissionError:
        return True


def _kubelet_failure(name: str, socket: Path, error: Exception) -> Finding:
    return fail(
        "kubelet",
        f"{name}: {error}",
        f"{socket.parent} is root's: run the agent's container as user 0 and mount that directory (not the socket)",
    )


def run_async(findings: AsyncIterator[Finding]) -> list[Finding]:
    """The findings of an asynchronous check."""

    async def collect() -> list[Finding]:
        return [finding async for finding in findings]

    return asyncio.run(collect())

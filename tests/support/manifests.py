"""What kubectl makes of our manifests, as objects."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir() if path.is_dir())
TARGETS = ["base", *(f"overlays/{name}" for name in OVERLAYS)]


@functools.cache
def _rendered(target: str) -> str:
    return kustomized(MANIFESTS / target)


def kustomized(folder: Path) -> str:
    """What `kubectl kustomize` makes of a folder; it must have nothing to say."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def rendered(target: str) -> list[dict[str, Any]]:
    """The objects of a kustomization, as `kubectl kustomize` makes them."""
    return [body for body in yaml.safe_load_all(_rendered(target)) if body]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [body for body in objects if body["kind"] == kind]


def pod_specs(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every pod spec, those in the ConfigMaps that Istio merges into a gateway's Deployment too."""
    found = []
    for body in objects:
        if body["kind"] in ("DaemonSet", "Deployment"):
            found.append(body["spec"]["template"]["spec"])
        elif body["kind"] == "ConfigMap" and "deployment" in body.get("data", {}):
            found.append(yaml.safe_load(body["data"]["deployment"])["spec"]["template"]["spec"])
    return found

"""Every overlay renders, is valid, and names only what exists in the product."""

from __future__ import annotations

import argparse
import functools
import os
import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from support.manifests import MANIFESTS, ROOT, TARGETS, kustomized, of_kind, pod_specs, rendered
from support.processes import zerohop_command

CRDS = {
    "InferencePool": "inference.networking.k8s.io_inferencepools.yaml",
    "DestinationRule": "istio_destinationrules.networking.istio.io.yaml",
    "EnvoyFilter": "istio_envoyfilters.networking.istio.io.yaml",
}
#: Kinds of the Gateway API, whose CRDs are not among the shared data, and built-in kinds: paths that must be there.
REQUIRED = {
    "Namespace": [],
    "ServiceAccount": [],
    "PriorityClass": ["value"],
    "ClusterRole": ["rules"],
    "Role": ["rules"],
    "ClusterRoleBinding": [
        "roleRef.kind",
        "roleRef.name",
        "roleRef.apiGroup",
        "subjects.0.kind",
        "subjects.0.namespace",
    ],
    "RoleBinding": ["roleRef.kind", "roleRef.name", "roleRef.apiGroup", "subjects.0.kind", "subjects.0.namespace"],
    "DaemonSet": [
        "spec.selector.matchLabels",
        "spec.template.metadata.labels",
        "spec.template.spec.containers.0.image",
    ],
    "Deployment": [
        "spec.selector.matchLabels",
        "spec.template.metadata.labels",
        "spec.template.spec.containers.0.image",
    ],
    "Service": ["spec.ports.0.port", "spec.selector"],
    "NetworkPolicy": ["spec.podSelector", "spec.policyTypes"],
    "PodDisruptionBudget": ["spec.selector"],
    "ConfigMap": ["data"],
    "Gateway": ["spec.gatewayClassName", "spec.listeners.0.name", "spec.listeners.0.port", "spec.listeners.0.protocol"],
    "HTTPRoute": ["spec.parentRefs.0.name", "spec.rules.0.backendRefs.0.name"],
}
API_VERSIONS = {
    "Namespace": "v1", "ServiceAccount": "v1", "Service": "v1", "ConfigMap": "v1",
    "PriorityClass": "scheduling.k8s.io/v1", "ClusterRole": "rbac.authorization.k8s.io/v1",
    "Role": "rbac.authorization.k8s.io/v1", "ClusterRoleBinding": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1", "DaemonSet": "apps/v1", "Deployment": "apps/v1",
    "NetworkPolicy": "networking.k8s.io/v1", "PodDisruptionBudget": "policy/v1",
    "Gateway": "gateway.networking.k8s.io/v1", "HTTPRoute": "gateway.networking.k8s.io/v1",
}  # fmt: skip
#: Cluster-wide kinds have no namespace.
CLUSTER_WIDE = ("Namespace", "PriorityClass", "ClusterRole", "ClusterRoleBinding")


def at(body: Any, path: str) -> Any:
    for part in path.split("."):
        body = body[int(part)] if part.isdecimal() else body[part]
    return body


@pytest.mark.parametrize("target", TARGETS)
def test_renders_with_every_required_field(target: str) -> None:
    objects = rendered(target)
    assert objects
    for body in objects:
        kind = body["kind"]
        assert body["metadata"]["name"]
        if kind in CRDS:
            continue
        assert body["apiVersion"] == API_VERSIONS[kind]
        assert ("namespace" in body["metadata"]) == (kind not in CLUSTER_WIDE)
        for path in REQUIRED[kind]:
            assert at(body, path), f"{target}: {kind} {body['metadata']['name']}: {path}"


@functools.cache
def _crd(path: Path) -> Any:
    return yaml.load(path.read_text(), yaml.CSafeLoader)


@pytest.mark.parametrize("target", TARGETS)
def test_custom_resources_are_valid(target: str, shared_data: Path) -> None:
    for body in rendered(target):
        if body["kind"] not in CRDS:
            continue
        crd = _crd(shared_data / "crds" / CRDS[body["kind"]])
        version = body["apiVersion"].rpartition("/")[2]
        (schema,) = [each["schema"]["openAPIV3Schema"] for each in crd["spec"]["versions"] if each["name"] == version]
        jsonschema.validate(body, schema)
        _no_unknown_fields(body["spec"], schema["properties"]["spec"], body["kind"])


def test_each_kind_of_custom_resource_is_among_what_is_validated() -> None:
    assert {body["kind"] for target in TARGETS for body in rendered(target)} >= set(CRDS)


def _no_unknown_fields(value: Any, schema: Any, place: str) -> None:
    """The API server drops what a CRD does not know, silently; here it is an error."""
    if schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema:
        return
    if isinstance(value, dict) and "properties" in schema:
        unknown = set(value) - set(schema["properties"])
        assert not unknown, f"{place}: {unknown}"
        for name, child in value.items():
            _no_unknown_fields(child, schema["properties"][name], f"{place}.{name}")
    if isinstance(value, list):
        for item in value:
            _no_unknown_fields(item, schema.get("items", {}), f"{place}[]")


def _help_of(command: str) -> str:
    done = subprocess.run([*zerohop_command(command), "--help"], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    return {command: _help_of(command) for command in ("agent", "picker")}


@pytest.mark.parametrize("target", TARGETS)
def test_every_flag_exists_and_parses(target: str, helps: dict[str, str]) -> None:
    from zerohop_agent import config as agent_config
    from zerohop_picker import config as picker_config

    programs = {"agent": agent_config, "picker": picker_config}
    seen = set()
    for spec in pod_specs(rendered(target)):
        for container in spec["containers"]:
            if "zerohop" not in container.get("image", ""):
                continue
            command, *words = (word.replace("$(POD_NAMESPACE)", "inference") for word in container["args"])
            seen.add(command)
            for word in words:
                flag = word.partition("=")[0]
                assert re.search(rf"(^|[\s\[]){flag}[\s,=\]]", helps[command]), f"{command} has no {flag}"
            parser = argparse.ArgumentParser(allow_abbrev=False)
            programs[command].add_arguments(parser)
            arguments = parser.parse_args(words)
            if command == "picker":
                picker_config.from_arguments(arguments)
            else:
                arguments.node_name = "node-a"
                agent_config.from_arguments(arguments)
    assert "agent" in seen


@pytest.mark.parametrize("target", ["base", "overlays/gpu-operator", "overlays/no-gpu", "overlays/restricted"])
def test_the_first_steps_of_the_guide(target: str, tmp_path: Path) -> None:
    """As docs/kubernetes.md has it: all goes into the pool's namespace, and nothing cluster-wide can clash."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    guide = page[page.index("    apiVersion: kustomize") : page.index("\n\nand `kubectl apply -k .`")]
    manifests = os.path.relpath(MANIFESTS, tmp_path.resolve())
    text = (
        textwrap.dedent(guide).replace("manifests/base]", f"manifests/{target}]").replace("[manifests", f"[{manifests}")
    )
    (tmp_path / "kustomization.yaml").write_text(text)
    objects = list(yaml.safe_load_all(kustomized(tmp_path)))
    assert {body["kind"] for body in objects if body["kind"] in CLUSTER_WIDE} == {"PriorityClass"}
    spaces = {body["metadata"]["namespace"] for body in objects if body["kind"] not in CLUSTER_WIDE}
    spaces |= {each["namespace"] for body in of_kind(objects, "RoleBinding") for each in body["subjects"]}
    assert spaces == {"inference"}


def test_the_images_version_is_the_packages() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    for path in MANIFESTS.rglob("*.yaml"):
        for tag in re.findall(r"(?:ghcr\.io/zerohop/zerohop:|newTag: )(\S+)", path.read_text()):
            assert tag == version[1], path

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
    "PeerAuthentication": "istio_peerauthentications.security.istio.io.yaml",
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


@pytest.mark.parametrize("target", TARGETS)
def test_paths_and_ports_fit_together(target: str) -> None:
    objects = rendered(target)
    for spec in pod_specs(objects):
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            mounts = {mount["mountPath"]: mount for mount in container.get("volumeMounts", [])}
            assert {mount["name"] for mount in mounts.values()} <= set(volumes)
            if "args" not in container:
                continue
            for word in container["args"]:
                for path in re.findall(r"(?<![\w/])/run/[\w./-]+", word):
                    assert any(path == mount or path.startswith(f"{mount}/") for mount in mounts), (
                        f"{path} is not mounted"
                    )
            ports = {int(port) for word in container["args"] for port in re.findall(r":(\d+)$", word)}
            assert ports >= {port["containerPort"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if "grpc" in container.get(probe, {}):
                    assert container[probe]["grpc"]["port"] in ports
                    assert container[probe]["grpc"]["service"] in ("liveness", "readiness")
        for name, volume in volumes.items():
            assert len([key for key in volume if key != "name"]) == 1, f"{name} has two sources"


@pytest.mark.parametrize("target", TARGETS)
def test_bindings_name_what_is_there(target: str) -> None:
    objects = rendered(target)
    accounts = {
        (body["metadata"]["namespace"], body["metadata"]["name"]) for body in of_kind(objects, "ServiceAccount")
    }
    roles = {(kind, body["metadata"]["name"]) for kind in ("Role", "ClusterRole") for body in of_kind(objects, kind)}
    bindings = of_kind(objects, "RoleBinding") + of_kind(objects, "ClusterRoleBinding")
    assert bindings
    for binding in bindings:
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles
        for subject in binding["subjects"]:
            assert (subject["namespace"], subject["name"]) in accounts
    (daemonset,) = of_kind(objects, "DaemonSet")
    spec = daemonset["spec"]["template"]["spec"]
    assert (daemonset["metadata"]["namespace"], spec["serviceAccountName"]) in accounts
    for pool in of_kind(objects, "InferencePool"):
        reference = pool["spec"]["endpointPickerRef"]
        services = {
            (body["metadata"]["namespace"], body["metadata"]["name"], port["port"])
            for body in of_kind(objects, "Service")
            for port in body["spec"]["ports"]
        }
        assert (pool["metadata"]["namespace"], reference["name"], reference["port"]["number"]) in services


@pytest.mark.parametrize("target", TARGETS)
def test_containers_have_no_more_than_they_need(target: str) -> None:
    objects = rendered(target)
    host_paths = [
        volume for body in of_kind(objects, "DaemonSet") for volume in body["spec"]["template"]["spec"]["volumes"]
        if "hostPath" in volume
    ]  # fmt: skip
    level = "privileged" if host_paths else "restricted"
    for namespace in of_kind(objects, "Namespace"):
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == level
    for spec in pod_specs(objects):
        assert not spec.get("hostNetwork")
        assert not spec.get("hostPID")
        assert not spec.get("hostIPC")
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            if "zerohop" not in container.get("image", ""):
                continue
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"]["drop"] == ["ALL"]
            assert not security.get("privileged")
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
            root = security["runAsUser"] == 0
            assert not (root and "picker" in container["name"])
            if level == "restricted":
                assert not root


@pytest.mark.parametrize("target", TARGETS)
def test_a_namespace_of_others_is_left_as_it_is(target: str) -> None:
    """A Pod Security level on the namespace of the model servers would refuse them at their next start."""
    objects = rendered(target)
    (daemonset,) = of_kind(objects, "DaemonSet")
    ours = daemonset["metadata"]["namespace"] == "zerohop-system"
    assert [body["metadata"]["name"] for body in of_kind(objects, "Namespace")] == (["zerohop-system"] if ours else [])
    assert ours == (not of_kind(objects, "InferencePool"))


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


@pytest.mark.parametrize("target", TARGETS)
def test_the_agent_watches_what_its_role_allows(target: str) -> None:
    objects = rendered(target)
    (daemonset,) = of_kind(objects, "DaemonSet")
    (agent,) = [each for each in daemonset["spec"]["template"]["spec"]["containers"] if each["name"] == "agent"]
    everywhere = bool(of_kind(objects, "ClusterRole"))
    assert ("--namespaces=$(POD_NAMESPACE)" in agent["args"]) == (not everywhere)
    assert everywhere == (target == "overlays/hostpath")
    assert "POD_NAMESPACE" in {entry["name"] for entry in agent["env"]}
    writes = "--no-write-status" not in agent["args"]
    rules = [
        rule for kind in ("Role", "ClusterRole") for body in of_kind(objects, kind) for rule in body["rules"]
    ]  # fmt: skip
    assert any("update" in rule["verbs"] for rule in rules) == writes


@pytest.mark.parametrize("target", TARGETS)
def test_a_picker_beside_a_pool_names_it(target: str) -> None:
    """With a second pool in the namespace a listener without a name would have to refuse its streams."""
    objects = rendered(target)
    names = {
        f"{pool['metadata']['namespace']}/{pool['metadata']['name']}" for pool in of_kind(objects, "InferencePool")
    }
    for spec in pod_specs(objects):
        for container in spec["containers"]:
            words = container.get("args", [])
            if not names or not words or words[0] != "picker":
                continue
            assert not any(word.startswith("--listen") for word in words)
            listeners = [word.removeprefix("--pool=") for word in words if word.startswith("--pool=")]
            assert {listener.partition("=")[0] for listener in listeners} == names


def test_every_service_selects_a_pod_with_its_ports() -> None:
    for target in TARGETS:
        objects = rendered(target)
        (daemonset,) = of_kind(objects, "DaemonSet")
        template = daemonset["spec"]["template"]
        labels = template["metadata"]["labels"]
        assert daemonset["spec"]["selector"]["matchLabels"].items() <= labels.items()
        ports = {
            port["name"]: port["containerPort"] for each in template["spec"]["containers"] for port in each["ports"]
        }
        policies = of_kind(objects, "NetworkPolicy")
        assert all(each["spec"]["podSelector"]["matchLabels"].items() <= labels.items() for each in policies)
        let_in = {port["port"] for each in policies for rule in each["spec"]["ingress"] for port in rule["ports"]}
        for service in of_kind(objects, "Service"):
            if not service["spec"]["selector"].items() <= labels.items():
                continue
            for port in service["spec"]["ports"]:
                if target == "overlays/sidecar" and port["targetPort"] not in ports:
                    continue  # the picker is in the gateway's pod there
                assert ports[port["targetPort"]] in let_in


def test_an_empty_pool_does_not_take_the_gateway_away() -> None:
    (config,) = [
        body for body in of_kind(rendered("overlays/sidecar"), "ConfigMap") if "deployment" in body.get("data", {})
    ]
    for container in yaml.safe_load(config["data"]["deployment"])["spec"]["template"]["spec"]["containers"]:
        if "readinessProbe" in container:
            assert container["readinessProbe"]["grpc"]["service"] == "liveness"


def test_the_pod_monitor_finds_the_pods_of_every_installation() -> None:
    monitor = yaml.safe_load((MANIFESTS / "monitoring" / "pod-monitor.yaml").read_text())["spec"]
    assert monitor["namespaceSelector"] == {"any": True}
    ports = {each["port"] for each in monitor["podMetricsEndpoints"]}
    for target in ("base", "overlays/istio"):
        (daemonset,) = of_kind(rendered(target), "DaemonSet")
        template = daemonset["spec"]["template"]
        assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert ports <= {port["name"] for each in template["spec"]["containers"] for port in each["ports"]}


def test_the_picker_never_gets_a_token() -> None:
    for target in TARGETS:
        (daemonset,) = of_kind(rendered(target), "DaemonSet")
        spec = daemonset["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            has_token = any("serviceaccount" in mount["mountPath"] for mount in container["volumeMounts"])
            assert has_token == (container["name"] == "agent")


def test_rbac_is_what_discovery_asks_for() -> None:
    from zerohop_agent.discovery.resources import CUSTOM, PODS

    role, everywhere = (
        next(body for body in of_kind(rendered(target), kind) if body["metadata"]["name"] == "zerohop-agent")
        for target, kind in (("base", "Role"), ("overlays/hostpath", "ClusterRole"))
    )
    assert everywhere["rules"] == role["rules"]
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    needed = {(each.group, each.plural, verb) for each in (PODS, *CUSTOM) for verb in ("get", "list", "watch")}
    needed |= {("inference.networking.x-k8s.io", "inferencemodels/status", "update")}
    assert granted == needed


def test_the_images_version_is_the_packages() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    for path in MANIFESTS.rglob("*.yaml"):
        for tag in re.findall(r"(?:ghcr\.io/zerohop/zerohop:|newTag: )(\S+)", path.read_text()):
            assert tag == version[1], path

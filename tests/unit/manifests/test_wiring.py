"""Paths, ports, selectors and names: what one object of an overlay says, another one has."""

from __future__ import annotations

import re

import pytest
import yaml

from support.manifests import MANIFESTS, TARGETS, of_kind, pod_specs, rendered


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

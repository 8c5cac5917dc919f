"""Every overlay asks for the permissions that it needs, and for no more."""

from __future__ import annotations

import pytest

from support.manifests import TARGETS, of_kind, pod_specs, rendered


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

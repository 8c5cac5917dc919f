"""The spec of each CRD, with its defaults filled in and its rules checked: one function per kind of object."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from zerohop_agent.discovery import spec_fields as fields
from zerohop_agent.discovery.resources import K8S_GROUP, X_K8S_GROUP, Resource, Role
from zerohop_agent.discovery.spec_fields import Invalid

_GROUP_NAME = re.compile(r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_KIND_NAME = re.compile(r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$")
_MOST_WEIGHT = 1_000_000
_INT32 = 2**31


def spec_of(raw: Any, resource: Resource) -> dict[str, Any]:
    """The spec of an object of `resource`, with its defaults. Raises: Invalid."""
    if resource.group == X_K8S_GROUP and resource.role is Role.POOLS:
        return _legacy_pool(raw)
    return _SPECS[resource.role](raw, resource)


def _pool(raw: Any, _resource: Resource) -> dict[str, Any]:
    """InferencePool v1."""
    spec = fields.mapping(raw, "spec")
    selector = fields.mapping(spec.get("selector"), "spec.selector")
    ports = []
    for index, item in enumerate(fields.items(spec.get("targetPorts"), "spec.targetPorts", 1, 8)):
        place = f"spec.targetPorts[{index}]"
        ports.append({"number": fields.integer(fields.mapping(item, place).get("number"), f"{place}.number", 1, 65535)})
    if len({port["number"] for port in ports}) != len(ports):
        raise Invalid("spec.targetPorts: a port number is named twice")
    result: dict[str, Any] = {
        "selector": {"matchLabels": fields.labels(selector.get("matchLabels"), "spec.selector.matchLabels", 1, 64)},
        "targetPorts": ports,
        "appProtocol": fields.choice(
            spec.get("appProtocol"), "spec.appProtocol", ("http", "kubernetes.io/h2c"), "http"
        ),
    }
    if spec.get("endpointPickerRef") is not None:
        result["endpointPickerRef"] = _picker_ref(spec["endpointPickerRef"])
    return result


def _legacy_pool(raw: Any) -> dict[str, Any]:
    """InferencePool v1alpha2, in the shape of v1."""
    spec = fields.mapping(raw, "spec")
    place = "spec.extensionRef"
    extension = fields.mapping(spec.get("extensionRef"), place)
    port = extension.get("portNumber")
    return {
        # An empty selector selects nothing in v1 (at least one label), and would select every pod in v1alpha2.
        "selector": {"matchLabels": fields.labels(spec.get("selector"), "spec.selector", 1, 64)},
        "targetPorts": [{"number": fields.integer(spec.get("targetPortNumber"), "spec.targetPortNumber", 1, 65535)}],
        "appProtocol": "http",
        "endpointPickerRef": {
            "group": fields.pattern(extension.get("group"), f"{place}.group", _GROUP_NAME, ""),
            "kind": fields.pattern(extension.get("kind"), f"{place}.kind", _KIND_NAME, "Service"),
            "name": fields.name(extension.get("name"), f"{place}.name"),
            "port": {"number": 9002 if port is None else fields.integer(port, f"{place}.portNumber", 1, 65535)},
            "failureMode": fields.choice(
                extension.get("failureMode"), f"{place}.failureMode", ("FailOpen", "FailClose"), "FailClose"
            ),
        },
    }


def _objective(raw: Any, _resource: Resource) -> dict[str, Any]:
    """InferenceObjective, either group. An unset priority is left out and means 0; a negative one is sheddable."""
    spec = fields.mapping(raw, "spec")
    result: dict[str, Any] = {"poolRef": _pool_ref(spec.get("poolRef"), K8S_GROUP)}
    if spec.get("priority") is not None:
        result["priority"] = fields.integer(spec["priority"], "spec.priority", -_INT32, _INT32 - 1)
    return result


def _rewrite(raw: Any, _resource: Resource) -> dict[str, Any]:
    """InferenceModelRewrite, either group."""
    spec = fields.mapping(raw, "spec")
    if spec.get("rules") is None:
        raise Invalid("spec.rules is missing")
    rules = [
        _rule(item, f"spec.rules[{index}]")
        for index, item in enumerate(fields.items(spec["rules"], "spec.rules", 0, 1000))
    ]
    return {"poolRef": _pool_ref(spec.get("poolRef"), K8S_GROUP), "rules": rules}


def _model(raw: Any, resource: Resource) -> dict[str, Any]:
    """InferenceModel v1alpha1 (weights from 0) and v1alpha2 (weights from 1)."""
    spec = fields.mapping(raw, "spec")
    least = 0 if resource.version == "v1alpha1" else 1
    targets = [
        _target(item, f"spec.targetModels[{index}]", "name", least_weight=least, longest=253)
        for index, item in enumerate(fields.items(spec.get("targetModels") or [], "spec.targetModels", 0, 10))
    ]
    if len({"weight" in target for target in targets}) > 1:
        raise Invalid("spec.targetModels: weights are set for some of the models; set all or none")
    result: dict[str, Any] = {
        "modelName": fields.text(spec.get("modelName"), "spec.modelName", 0, 256),
        "poolRef": _pool_ref(spec.get("poolRef"), X_K8S_GROUP),
        "targetModels": targets,
    }
    if spec.get("criticality") is not None:
        result["criticality"] = fields.choice(
            spec["criticality"], "spec.criticality", ("Critical", "Standard", "Sheddable"), "Standard"
        )
    return result


def _picker_ref(raw: Any) -> dict[str, Any]:
    place = "spec.endpointPickerRef"
    ref = fields.mapping(raw, place)
    result: dict[str, Any] = {
        "group": fields.pattern(ref.get("group"), f"{place}.group", _GROUP_NAME, ""),
        "kind": fields.pattern(ref.get("kind"), f"{place}.kind", _KIND_NAME, "Service"),
        "name": fields.name(ref.get("name"), f"{place}.name"),
        "failureMode": fields.choice(
            ref.get("failureMode"), f"{place}.failureMode", ("FailOpen", "FailClose"), "FailClose"
        ),
    }
    if ref.get("port") is not None:
        port = fields.mapping(ref["port"], f"{place}.port")
        result["port"] = {"number": fields.integer(port.get("number"), f"{place}.port.number", 1, 65535)}
    elif result["kind"] == "Service":
        raise Invalid(f"{place}.port is required for kind Service")
    return result


def _pool_ref(raw: Any, group: str) -> dict[str, Any]:
    ref = fields.mapping(raw, "spec.poolRef")
    return {
        "group": fields.pattern(ref.get("group"), "spec.poolRef.group", _GROUP_NAME, group),
        "kind": fields.pattern(ref.get("kind"), "spec.poolRef.kind", _KIND_NAME, "InferencePool"),
        "name": fields.name(ref.get("name"), "spec.poolRef.name"),
    }


def _rule(raw: Any, place: str) -> dict[str, Any]:
    rule = fields.mapping(raw, place)
    targets = [
        _target(item, f"{place}.targets[{index}]", "modelRewrite", least_weight=1)
        for index, item in enumerate(fields.items(rule.get("targets"), f"{place}.targets", 1, 1000))
    ]
    matches = [
        _match(item, f"{place}.matches[{index}].model")
        for index, item in enumerate(fields.items(rule.get("matches") or [], f"{place}.matches", 0, 1000))
    ]
    return {"matches": matches, "targets": targets}


def _match(raw: Any, place: str) -> dict[str, Any]:
    model = fields.mapping(fields.mapping(raw, place).get("model"), place)
    return {
        "model": {
            "type": fields.choice(model.get("type"), f"{place}.type", ("Exact",), "Exact"),
            "value": fields.text(model.get("value"), f"{place}.value", 1, 4096),
        }
    }


def _target(raw: Any, place: str, field: str, *, least_weight: int, longest: int = 4096) -> dict[str, Any]:
    given = fields.mapping(raw, place)
    target: dict[str, Any] = {field: fields.text(given.get(field), f"{place}.{field}", 0, longest)}
    if given.get("weight") is not None:
        target["weight"] = fields.integer(given["weight"], f"{place}.weight", least_weight, _MOST_WEIGHT)
    return target


_SPECS: Mapping[Role, Callable[[Any, Resource], dict[str, Any]]] = {
    Role.POOLS: _pool,
    Role.OBJECTIVES: _objective,
    Role.REWRITES: _rewrite,
    Role.MODELS: _model,
}

"""Pools, objectives, rewrites and models, with the defaults and the validation of their CRDs.

Both are applied here as well as by the API server: a CRD may be installed without its validation (by hand, or an
older one), and an object may be older than its CRD. An object that breaks a rule is not used, and the reason is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zerohop_agent.discovery.pods import unix_seconds
from zerohop_agent.discovery.resources import K8S_GROUP, X_K8S_GROUP, Resource, Role

_GROUP_NAME = re.compile(r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_KIND_NAME = re.compile(r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$")
_LABEL_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_MOST_WEIGHT = 1_000_000
_INT32 = 2**31


class Invalid(ValueError):
    """An object breaks a rule of its CRD; the message names the field."""


@dataclass(frozen=True, slots=True)
class Custom:
    """One object of a CRD: a valid spec with its defaults filled in, or the reason why it is of no use."""

    resource: Resource
    namespace: str
    name: str
    uid: str
    #: Unix seconds of the creation timestamp; 0 where there is none.
    created: float
    generation: int
    version: str
    spec: Mapping[str, Any]
    #: Conditions of the status, for writing it.
    conditions: tuple[Mapping[str, Any], ...] = ()
    invalid: str | None = None

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def pool(self) -> str:
        """`namespace/name` of the pool that the object refers to. A reference has no namespace: it is the object's."""
        return f"{self.namespace}/{self.spec.get('poolRef', {}).get('name', '')}"

    def entry(self) -> dict[str, Any]:
        """The spec with name, namespace, created and uid, as the snapshot holds it."""
        return {**self.spec, "name": self.name, "namespace": self.namespace, "created": self.created, "uid": self.uid}


def decoder(resource: Resource) -> Callable[[dict[str, Any]], Custom | None]:
    """A function from an object of `resource` to what is kept of it; None for what is no object at all."""
    read = _SPECS[resource.role]

    def decode(body: dict[str, Any]) -> Custom | None:
        metadata = body.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            return None
        spec: Mapping[str, Any] = {}
        invalid = None
        try:
            if resource.group == X_K8S_GROUP and resource.role is Role.POOLS:
                spec = legacy_pool_spec(body.get("spec"))
            else:
                spec = read(body.get("spec"), resource)
        except Invalid as error:
            invalid = str(error)
        status = body.get("status")
        conditions = status.get("conditions") if isinstance(status, dict) else None
        generation = metadata.get("generation")
        return Custom(
            resource=resource,
            namespace=str(metadata.get("namespace") or ""),
            name=metadata["name"],
            uid=str(metadata.get("uid") or ""),
            created=unix_seconds(metadata.get("creationTimestamp")),
            generation=generation if isinstance(generation, int) else 0,
            version=str(metadata.get("resourceVersion") or ""),
            spec=spec,
            conditions=tuple(item for item in conditions if isinstance(item, dict))
            if isinstance(conditions, list)
            else (),
            invalid=invalid,
        )

    return decode


# One function per spec: the spec with its defaults. Raises Invalid.


def pool_spec(raw: Any, _resource: Resource) -> dict[str, Any]:
    """InferencePool v1."""
    spec = _mapping(raw, "spec")
    selector = _mapping(spec.get("selector"), "spec.selector")
    ports = []
    for index, item in enumerate(_items(spec.get("targetPorts"), "spec.targetPorts", 1, 8)):
        place = f"spec.targetPorts[{index}]"
        ports.append({"number": _integer(_mapping(item, place).get("number"), f"{place}.number", 1, 65535)})
    if len({port["number"] for port in ports}) != len(ports):
        raise Invalid("spec.targetPorts: a port number is named twice")
    result: dict[str, Any] = {
        "selector": {"matchLabels": _labels(selector.get("matchLabels"), "spec.selector.matchLabels", 1, 64)},
        "targetPorts": ports,
        "appProtocol": _choice(spec.get("appProtocol"), "spec.appProtocol", ("http", "kubernetes.io/h2c"), "http"),
    }
    if spec.get("endpointPickerRef") is not None:
        result["endpointPickerRef"] = _picker_ref(spec["endpointPickerRef"])
    return result


def legacy_pool_spec(raw: Any) -> dict[str, Any]:
    """InferencePool v1alpha2, in the shape of v1."""
    spec = _mapping(raw, "spec")
    place = "spec.extensionRef"
    extension = _mapping(spec.get("extensionRef"), place)
    port = extension.get("portNumber")
    return {
        # An empty selector selects nothing in v1 (at least one label), and would select every pod in v1alpha2.
        "selector": {"matchLabels": _labels(spec.get("selector"), "spec.selector", 1, 64)},
        "targetPorts": [{"number": _integer(spec.get("targetPortNumber"), "spec.targetPortNumber", 1, 65535)}],
        "appProtocol": "http",
        "endpointPickerRef": {
            "group": _pattern(extension.get("group"), f"{place}.group", _GROUP_NAME, ""),
            "kind": _pattern(extension.get("kind"), f"{place}.kind", _KIND_NAME, "Service"),
            "name": _name(extension.get("name"), f"{place}.name"),
            "port": {"number": 9002 if port is None else _integer(port, f"{place}.portNumber", 1, 65535)},
            "failureMode": _choice(
                extension.get("failureMode"), f"{place}.failureMode", ("FailOpen", "FailClose"), "FailClose"
            ),
        },
    }


def objective_spec(raw: Any, _resource: Resource) -> dict[str, Any]:
    """InferenceObjective, either group. An unset priority is left out and means 0; a negative one is sheddable."""
    spec = _mapping(raw, "spec")
    result: dict[str, Any] = {"poolRef": _pool_ref(spec.get("poolRef"), K8S_GROUP)}
    if spec.get("priority") is not None:
        result["priority"] = _integer(spec["priority"], "spec.priority", -_INT32, _INT32 - 1)
    return result


def rewrite_spec(raw: Any, _resource: Resource) -> dict[str, Any]:
    """InferenceModelRewrite, either group."""
    spec = _mapping(raw, "spec")
    if spec.get("rules") is None:
        raise Invalid("spec.rules is missing")
    rules = []
    for index, item in enumerate(_items(spec["rules"], "spec.rules", 0, 1000)):
        place = f"spec.rules[{index}]"
        rule = _mapping(item, place)
        targets = []
        for number, entry in enumerate(_items(rule.get("targets"), f"{place}.targets", 1, 1000)):
            target = _mapping(entry, f"{place}.targets[{number}]")
            targets.append(_target(target, f"{place}.targets[{number}]", "modelRewrite", least_weight=1))
        matches = []
        for number, entry in enumerate(_items(rule.get("matches") or [], f"{place}.matches", 0, 1000)):
            match_place = f"{place}.matches[{number}].model"
            model = _mapping(_mapping(entry, match_place).get("model"), match_place)
            matches.append(
                {
                    "model": {
                        "type": _choice(model.get("type"), f"{match_place}.type", ("Exact",), "Exact"),
                        "value": _text(model.get("value"), f"{match_place}.value", 1, 4096),
                    }
                }
            )
        rules.append({"matches": matches, "targets": targets})
    return {"poolRef": _pool_ref(spec.get("poolRef"), K8S_GROUP), "rules": rules}


def model_spec(raw: Any, resource: Resource) -> dict[str, Any]:
    """InferenceModel v1alpha1 (weights from 0) and v1alpha2 (weights from 1)."""
    spec = _mapping(raw, "spec")
    least = 0 if resource.version == "v1alpha1" else 1
    targets = []
    for index, item in enumerate(_items(spec.get("targetModels") or [], "spec.targetModels", 0, 10)):
        place = f"spec.targetModels[{index}]"
        targets.append(_target(_mapping(item, place), place, "name", least_weight=least, longest=253))
    if len({"weight" in target for target in targets}) > 1:
        raise Invalid("spec.targetModels: weights are set for some of the models; set all or none")
    result: dict[str, Any] = {
        "modelName": _text(spec.get("modelName"), "spec.modelName", 0, 256),
        "poolRef": _pool_ref(spec.get("poolRef"), X_K8S_GROUP),
        "targetModels": targets,
    }
    if spec.get("criticality") is not None:
        result["criticality"] = _choice(
            spec["criticality"], "spec.criticality", ("Critical", "Standard", "Sheddable"), "Standard"
        )
    return result


_SPECS: Mapping[Role, Callable[[Any, Resource], dict[str, Any]]] = {
    Role.POOLS: pool_spec,
    Role.OBJECTIVES: objective_spec,
    Role.REWRITES: rewrite_spec,
    Role.MODELS: model_spec,
}


def _picker_ref(raw: Any) -> dict[str, Any]:
    place = "spec.endpointPickerRef"
    ref = _mapping(raw, place)
    result: dict[str, Any] = {
        "group": _pattern(ref.get("group"), f"{place}.group", _GROUP_NAME, ""),
        "kind": _pattern(ref.get("kind"), f"{place}.kind", _KIND_NAME, "Service"),
        "name": _name(ref.get("name"), f"{place}.name"),
        "failureMode": _choice(ref.get("failureMode"), f"{place}.failureMode", ("FailOpen", "FailClose"), "FailClose"),
    }
    if ref.get("port") is not None:
        port = _mapping(ref["port"], f"{place}.port")
        result["port"] = {"number": _integer(port.get("number"), f"{place}.port.number", 1, 65535)}
    elif result["kind"] == "Service":
        raise Invalid(f"{place}.port is required for kind Service")
    return result


def _pool_ref(raw: Any, group: str) -> dict[str, Any]:
    ref = _mapping(raw, "spec.poolRef")
    return {
        "group": _pattern(ref.get("group"), "spec.poolRef.group", _GROUP_NAME, group),
        "kind": _pattern(ref.get("kind"), "spec.poolRef.kind", _KIND_NAME, "InferencePool"),
        "name": _name(ref.get("name"), "spec.poolRef.name"),
    }


def _target(
    raw: Mapping[str, Any], place: str, field: str, *, least_weight: int, longest: int = 4096
) -> dict[str, Any]:
    target: dict[str, Any] = {field: _text(raw.get(field), f"{place}.{field}", 0, longest)}
    if raw.get("weight") is not None:
        target["weight"] = _integer(raw["weight"], f"{place}.weight", least_weight, _MOST_WEIGHT)
    return target


def _mapping(value: Any, place: str) -> Mapping[str, Any]:
    if value is None:
        raise Invalid(f"{place} is missing")
    if not isinstance(value, dict):
        raise Invalid(f"{place} is not a mapping")
    return value


def _items(value: Any, place: str, fewest: int, most: int) -> list[Any]:
    if value is None and fewest:
        raise Invalid(f"{place} is missing")
    if not isinstance(value, list) or not fewest <= len(value) <= most:
        raise Invalid(f"{place} must be a list of {fewest} to {most} items")
    return value


def _text(value: Any, place: str, shortest: int, longest: int) -> str:
    if value is None:
        raise Invalid(f"{place} is missing")
    if not isinstance(value, str) or not shortest <= len(value) <= longest:
        raise Invalid(f"{place} must be text of {shortest} to {longest} characters")
    return value


def _name(value: Any, place: str) -> str:
    return _text(value, place, 1, 253)


def _integer(value: Any, place: str, least: int, most: int) -> int:
    if value is None:
        raise Invalid(f"{place} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Invalid(f"{place} must be a whole number from {least} to {most}")
    return value


def _choice(value: Any, place: str, choices: tuple[str, ...], default: str) -> str:
    if value is None:
        return default
    if value not in choices:
        raise Invalid(f"{place} must be one of {', '.join(choices)}")
    return str(value)


def _pattern(value: Any, place: str, pattern: re.Pattern[str], default: str) -> str:
    if value is None:
        return default
    if not isinstance(value, str) or len(value) > 253 or not pattern.match(value):
        raise Invalid(f"{place}: {str(value)[:80]!r} is not allowed")
    return value


def _labels(value: Any, place: str, fewest: int, most: int) -> dict[str, str]:
    labels = _mapping(value, place)
    if not fewest <= len(labels) <= most:
        raise Invalid(f"{place} must have {fewest} to {most} labels")
    for key, text in labels.items():
        if not isinstance(key, str) or not isinstance(text, str) or len(text) > 63 or not _LABEL_VALUE.match(text):
            raise Invalid(f"{place}: {str(key)[:80]!r} has a value that no label can have")
    return dict(labels)

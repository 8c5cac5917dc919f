"""Defaults and validation, checked against the CRDs themselves where they are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from support.apiserver import custom
from zerohop_agent.discovery.customs import Custom, decoder
from zerohop_agent.discovery.resources import CUSTOM, POOLS_V1, POOLS_V1ALPHA2, Resource, Role

OBJECTIVES, X_OBJECTIVES, REWRITES, X_REWRITES, MODELS, MODELS_ALPHA1 = CUSTOM[2:]
FILES = {
    POOLS_V1: "inference.networking.k8s.io_inferencepools.yaml",
    POOLS_V1ALPHA2: "v1.4.0_inference.networking.x-k8s.io_inferencepools.yaml",
    OBJECTIVES: "llm-d.ai_inferenceobjectives.yaml",
    X_OBJECTIVES: "v1.4.0_inference.networking.x-k8s.io_inferenceobjectives.yaml",
    REWRITES: "llm-d.ai_inferencemodelrewrites.yaml",
    X_REWRITES: "v1.4.0_inference.networking.x-k8s.io_inferencemodelrewrites.yaml",
    MODELS: "v0.5.1_inference.networking.x-k8s.io_inferencemodels.yaml",
    MODELS_ALPHA1: "v0.1.0_inference.networking.x-k8s.io_inferencemodels.yaml",
}
SELECTOR = {"matchLabels": {"app": "vllm"}}
PICKER = {"name": "epp", "port": {"number": 9002}}
OLD_POOL = {"selector": {"app": "vllm"}, "targetPortNumber": 8000, "extensionRef": {"name": "epp"}}
REF = {"poolRef": {"name": "llama"}}
TARGET = {"modelRewrite": "x"}
GOOD: list[tuple[Resource, Any]] = [
    (POOLS_V1, {"selector": SELECTOR, "targetPorts": [{"number": 8000}]}),
    (
        POOLS_V1,
        {"selector": SELECTOR, "targetPorts": [{"number": n} for n in range(1, 9)], "endpointPickerRef": PICKER},
    ),
    (POOLS_V1ALPHA2, OLD_POOL),
    (OBJECTIVES, REF),
    (X_OBJECTIVES, {**REF, "priority": -5}),
    (REWRITES, {**REF, "rules": []}),
    (X_REWRITES, {**REF, "rules": [{"targets": [TARGET, {**TARGET, "weight": 1000000}]}]}),
    (REWRITES, {**REF, "rules": [{"matches": [{"model": {"value": "m"}}], "targets": [TARGET]}]}),
    (MODELS, {**REF, "modelName": "m"}),
    (MODELS, {**REF, "modelName": "m", "criticality": "Sheddable", "targetModels": [{"name": "a", "weight": 1}]}),
    (MODELS_ALPHA1, {**REF, "modelName": "m", "targetModels": [{"name": "a", "weight": 0}]}),
]
BAD: list[tuple[Resource, Any, str]] = [
    (POOLS_V1, None, "spec is missing"),
    (POOLS_V1, {"targetPorts": [{"number": 1}]}, "spec.selector"),
    (POOLS_V1, {"selector": {"matchLabels": {}}, "targetPorts": [{"number": 1}]}, "matchLabels"),
    (POOLS_V1, {"selector": {"matchLabels": {"a": "b c"}}, "targetPorts": [{"number": 1}]}, "matchLabels"),
    (POOLS_V1, {"selector": SELECTOR, "targetPorts": []}, "targetPorts"),
    (POOLS_V1, {"selector": SELECTOR, "targetPorts": [{"number": n} for n in range(1, 10)]}, "targetPorts"),
    (POOLS_V1, {"selector": SELECTOR, "targetPorts": [{"number": 65536}]}, "number"),
    (POOLS_V1, {"selector": SELECTOR, "targetPorts": [{"number": 80}], "appProtocol": "h3"}, "appProtocol"),
    (POOLS_V1ALPHA2, {**OLD_POOL, "targetPortNumber": 0}, "targetPortNumber"),
    (POOLS_V1ALPHA2, {**OLD_POOL, "extensionRef": {"name": "e", "failureMode": "x"}}, "failureMode"),
    (OBJECTIVES, {}, "poolRef"),
    (OBJECTIVES, {"poolRef": {"name": ""}}, "poolRef.name"),
    (X_OBJECTIVES, {**REF, "priority": "high"}, "priority"),
    (REWRITES, REF, "rules"),
    (REWRITES, {**REF, "rules": [{"targets": []}]}, "targets"),
    (X_REWRITES, {**REF, "rules": [{"targets": [{**TARGET, "weight": 0}]}]}, "weight"),
    (MODELS, REF, "modelName"),
    (MODELS, {**REF, "modelName": "m" * 257}, "modelName"),
    (MODELS, {**REF, "modelName": "m", "criticality": "Low"}, "criticality"),
    (MODELS, {**REF, "modelName": "m", "targetModels": [{"name": "a"}] * 11}, "targetModels"),
]
#: Rules in CEL, which jsonschema does not know.
BAD_BY_CEL: list[tuple[Resource, Any, str]] = [
    (POOLS_V1, {"selector": SELECTOR, "targetPorts": [{"number": 80}] * 2}, "twice"),
    (POOLS_V1, {"selector": SELECTOR, "targetPorts": [{"number": 80}], "endpointPickerRef": {"name": "e"}}, "port"),
    (MODELS, {**REF, "modelName": "m", "targetModels": [{"name": "a", "weight": 1}, {"name": "b"}]}, "weights"),
]


def read(resource: Resource, spec: Any) -> Custom:
    found = decoder(resource)(custom(resource, "x", spec))
    assert found is not None
    return found


def schema_of(shared_data: Path, resource: Resource) -> Any:
    crd = yaml.safe_load((shared_data / "crds" / FILES[resource]).read_text())
    (version,) = [each for each in crd["spec"]["versions"] if each["name"] == resource.version]
    return version["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize(("resource", "spec"), GOOD)
def test_what_the_crd_allows_we_allow(shared_data: Path, resource: Resource, spec: Any) -> None:
    jsonschema.validate(custom(resource, "x", spec), schema_of(shared_data, resource))
    assert read(resource, spec).invalid is None


@pytest.mark.parametrize(("resource", "spec", "place"), BAD)
def test_what_the_crd_refuses_we_refuse(shared_data: Path, resource: Resource, spec: Any, place: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(custom(resource, "x", spec), schema_of(shared_data, resource))
    assert place in (read(resource, spec).invalid or "")


@pytest.mark.parametrize(("resource", "spec", "place"), BAD_BY_CEL)
def test_rules_in_cel(resource: Resource, spec: Any, place: str) -> None:
    assert place in (read(resource, spec).invalid or "")


@pytest.mark.parametrize("resource", CUSTOM)
def test_defaults_are_those_of_the_crd(shared_data: Path, resource: Resource) -> None:
    """Each default that a CRD states is what we fill in."""
    spec = next(good for kind, good in reversed(GOOD) if kind == resource)
    if resource.role is Role.POOLS and resource.group == POOLS_V1ALPHA2.group:
        ours = read(resource, spec).spec["endpointPickerRef"]
        theirs = schema_of(shared_data, resource)["properties"]["spec"]["properties"]["extensionRef"]["properties"]
        assert {name: ours[name] for name in ("group", "kind", "failureMode")} == {
            name: theirs[name]["default"] for name in ("group", "kind", "failureMode")
        }
        return
    schema = schema_of(shared_data, resource)["properties"]["spec"]
    assert _defaults_missing(schema, read(resource, spec).spec, "spec") == []


def _defaults_missing(schema: Any, value: Any, place: str) -> list[str]:
    missing = []
    for name, child in schema.get("properties", {}).items():
        if "default" in child and isinstance(value, dict) and value.get(name) != child["default"]:
            missing += [f"{place}.{name}"] if name not in value else []
        if isinstance(value, dict) and name in value:
            missing += _defaults_missing(child, value[name], f"{place}.{name}")
    if isinstance(value, list):
        for item in value:
            missing += _defaults_missing(schema.get("items", {}), item, f"{place}[]")
    return missing


def test_an_entry_is_the_spec_with_its_identity() -> None:
    entry = read(X_OBJECTIVES, {**REF, "priority": 3}).entry()
    assert entry == {
        "poolRef": {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "llama"},
        "priority": 3,
        "name": "x",
        "namespace": "default",
        "created": 1767225600.0,
        "uid": "inferenceobjectives-default-x",
    }

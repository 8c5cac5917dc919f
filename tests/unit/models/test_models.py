"""Model names, objectives and rewrites: precedence, weights, duplicates, and bad files."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerohop_picker.models.catalog import Catalog
from zerohop_picker.models.draw import WeightedDraw
from zerohop_picker.models.resources import load_resources, pool_resources
from zerohop_process.errors import ConfigError


def catalog(**parts: Any) -> Catalog:
    return Catalog([pool_resources({"name": "default/p", **parts})], "default/p")


def model(name: str, targets: Any = None, created: float = 0, **spec: Any) -> dict[str, Any]:
    entry = {"name": f"im-{name}-{created:g}", "namespace": "default", "created": created, "modelName": name, **spec}
    if targets is not None:
        entry["targetModels"] = [{"name": t, **({} if w is None else {"weight": w})} for t, w in targets]
    return entry


@settings(max_examples=100, deadline=None)
@given(weights=st.lists(st.integers(0, 30), min_size=1, max_size=10))
def test_proportions_are_exact_and_a_zero_is_never_drawn(weights: list[int]) -> None:
    """GIE#426: any weights give an item of positive weight, or an error when they are loaded."""
    if not any(weights):
        with pytest.raises(ValueError, match="above 0"):
            WeightedDraw(range(len(weights)), weights)
        return
    draw = WeightedDraw(range(len(weights)), weights)
    counts = Counter(draw.draw() for _ in range(sum(weights) * 2))
    assert [counts[i] for i in range(len(weights))] == [2 * weight for weight in weights]


def test_every_prefix_of_the_draws_is_near_its_share() -> None:
    draw = WeightedDraw("ab", [70, 30])
    seen = Counter[str]()
    for number in range(1, 501):
        seen[draw.draw()] += 1
        assert abs(seen["a"] - 0.7 * number) < 1


def test_target_models_are_drawn_by_weight_and_default_to_one() -> None:
    made = catalog(models=[model("m", [("m-1", None), ("m-2", 3), ("m-0", 0)])])
    assert Counter(made.resolve("m", None, None).model for _ in range(40)) == {"m-1": 10, "m-2": 30}


def test_all_zero_is_reserved() -> None:
    resolution = catalog(models=[model("m", [("a", 0), ("b", 0)])]).resolve("m", None, None)
    assert resolution.reserved


@pytest.mark.parametrize(
    ("criticality", "priority"), [("Critical", 1), ("Default", 0), ("Standard", 0), ("Sheddable", -1), (None, 0)]
)
def test_criticality_is_a_priority_and_an_objective_stands_above_it(criticality: str | None, priority: int) -> None:
    spec: dict[str, Any] = {} if criticality is None else {"criticality": criticality}
    made = catalog(models=[model("m", **spec)], objectives=[{"name": "batch", "priority": -5}, {"name": "plain"}])
    assert made.resolve("m", None, None).priority == priority
    assert made.resolve("m", None, "batch").priority == -5
    assert made.resolve("m", None, "plain").priority == 0
    assert made.resolve("m", None, "unknown").priority == priority
    assert made.resolve("other", None, None).priority == 0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_oldest_of_two_objects_wins_in_any_order_and_the_other_is_reported(order: tuple[int, ...]) -> None:
    """models-as-a-service#737: the same set of objects in another order must decide alike."""
    objects = [model("m", [("old", 1)], created=1), model("m", [("new", 1)], created=2), model("n", [("n1", 1)])]
    made = catalog(models=[objects[index] for index in order])
    assert made.resolve("m", None, None).model == "old"
    assert len(made.problems) == 1
    assert "'m' is in use by the older default/im-m-1" in made.problems[0]


def rewrite(name: str, *rules: tuple[list[str], list[tuple[str, int | None]]], created: float = 0) -> dict[str, Any]:
    return {
        "name": name, "namespace": "default", "created": created,
        "rules": [
            {
                "matches": [{"model": {"value": m}} for m in matches],
                "targets": [{"modelRewrite": t, **({} if w is None else {"weight": w})} for t, w in targets],
            }
            for matches, targets in rules
        ],
    }  # fmt: skip


def test_rewrite_precedence() -> None:
    made = catalog(
        rewrites=[
            rewrite("newer", (["m"], [("late", None)]), created=2),
            rewrite("older", ([], [("any", None)]), (["m"], [("exact", None)]), (["m"], [("second", None)]), created=1),
        ],
        models=[model("m", [("target", 1)]), model("k", [("k-target", 1)])],
    )
    assert made.resolve("m", "header", None).model == "exact"
    assert made.resolve("x", "header", None).model == "any"
    without = catalog(models=[model("k", [("k-target", 1)])])
    assert without.resolve("k", "header", None).model == "header"
    assert without.resolve("k", None, None).model == "k-target"
    assert without.resolve("x", None, None).model is None


def test_rewrite_weights_mixed_and_absent() -> None:
    uniform = catalog(rewrites=[rewrite("r", ([], [("a", None), ("b", None)]))])
    assert Counter(uniform.resolve("m", None, None).model for _ in range(10)) == {"a": 5, "b": 5}
    mixed = catalog(rewrites=[rewrite("r", ([], [("a", 2), ("b", None)]))])
    assert {mixed.resolve("m", None, None).model for _ in range(10)} == {"a"}


def test_a_reload_goes_on_with_the_draws() -> None:
    spec = {"models": [model("m", [("a", 1), ("b", 1)])]}
    first = catalog(**spec)
    names = [first.resolve("m", None, None).model]
    second = catalog(**spec)
    second.inherit(first)
    names.append(second.resolve("m", None, None).model)
    assert sorted(str(name) for name in names) == ["a", "b"]


def test_an_object_that_makes_no_sense_is_left_out_and_the_others_work() -> None:
    made = catalog(models=[model("bad", [("a", -1)]), model("m", [("a", 1)]), {"name": "x"}, "junk"])
    assert made.resolve("m", None, None).model == "a"
    assert made.resolve("bad", None, None).model is None
    assert len(made.problems) == 2


FILE = """
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {name: chat, creationTimestamp: "2026-01-01T00:00:00Z", labels: {a: b}}
spec:
  modelName: chat
  criticality: Critical
  poolRef: {name: p}
  targetModels: [{name: chat-v1, weight: 1}]
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {priority: -1, poolRef: {name: p}}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: r}
spec:
  poolRef: {name: p}
  rules: [{matches: [{model: {value: old}}], targets: [{modelRewrite: new}]}]
"""


@pytest.mark.parametrize("pool", ["default/p", "p", None])
def test_a_file_means_the_same(pool: str | None) -> None:
    made = Catalog([load_resources(FILE, "models.yaml")], pool)
    assert made.resolve("chat", None, None).model == "chat-v1"
    assert made.resolve("chat", None, "batch").priority == -1
    assert made.resolve("old", None, None).model == "new"


def test_an_object_of_another_pool_does_not_apply() -> None:
    assert Catalog([load_resources(FILE, "models.yaml")], "default/q").empty


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("criticality: Critical", "criticality: Crit", "is not one of"),
        ("weight: 1", "weight: 1000001", "between 0 and 1e+06"),
        ("modelName: chat", "modelname: chat", "'modelName' is missing"),
        ("kind: InferenceObjective", "kind: InferenceObjectiv", "did you mean 'InferenceObjective'"),
        ("2026-01-01T00:00:00Z", "yesterday", "is not a time"),
        ("[{name: chat-v1, weight: 1}]", "[" + "{name: a}," * 11 + "]", "at most 10"),
        ("targets: [{modelRewrite: new}]", "targets: []", "at least one target"),
        ("{modelRewrite: new}", "{modelRewrite: new, weight: 0}", "between 1 and"),
    ],
)
def test_a_bad_file_is_explained(old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"^models\.yaml:\d+") as caught:
        load_resources(FILE.replace(old, new, 1), "models.yaml")
    assert words in str(caught.value)

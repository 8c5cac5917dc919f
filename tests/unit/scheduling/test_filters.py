"""Every filter: whom it keeps, what it does with the unknown, and what when nobody is left."""

# ruff: noqa: E501 - a table reads best with one case a line
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unit.scheduling.synthetic import build, endpoints, request
from zerohop_picker.scheduling.registry import TYPES
from zerohop_snapshot import Flag

SELECTOR = "matchLabels: {tier: gold}"
RANGE = "attribute: max_model_len\nalgorithm: {type: range, range: {min: 4096, max: 8192}}"


def kept(type_name: str, parameters: str, candidates: Any, asked: Any) -> list[int]:
    mask = build(type_name, parameters)(candidates, asked)
    return list(range(len(candidates))) if mask is None else np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(
    ("type_name", "parameters", "columns", "expected"),
    [
        ("utilization-filter", "conditions: [{metric: waiting-queue, maxValue: 2}]", {"waiting": [0, 2, 3]}, [0, 1]),
        ("utilization-filter", "conditions: [{metric: waiting-queue, maxValue: 2}]", {"waiting": [2, 2, 2], "picks": [0, 1, 0]}, [0, 2]),
        ("utilization-filter", "conditions: [{metric: kv-cache-utilization, maxValue: 0.5}]", {"kv_cache_usage": [0.6, 0.5, None]}, [1, 2]),
        ("utilization-filter", "conditions: [{metric: running-requests, maxValue: 1}]", {"running": [5, 6, 7]}, []),
        ("utilization-filter", "conditions: [{metric: running-requests, maxValue: 1}]\nfallbackOnEmpty: true", {"running": [5, 6, 7]}, [0, 1, 2]),
        ("utilization-filter", "conditions: [{metric: active-requests, maxValue: 1}]", {"in_flight": [0, 1, 2]}, [0, 1]),
        ("low-queue-filter", "threshold: 3", {"waiting": [1, 4, None]}, [0]),
        ("low-queue-filter", "threshold: 3", {"waiting": [9, 4, None]}, [0, 1, 2]),
        ("slowdown-filter", "", {"slowdown": [1.0, 2.0, None]}, [0, 2]),
        ("slowdown-filter", "", {"slowdown": [3.0, 2.0, 4.0]}, [0, 1, 2]),
        ("health-filter", "drop: [overloaded]", {"flags": [1, 1 | int(Flag.OVERLOADED), 1]}, [0, 2]),
        ("endpoint-attribute-filter", RANGE, {"max_model_len": [2048, 8192, None]}, [1, 2]),
        ("endpoint-attribute-filter", RANGE + "\nonMissing: Fail", {"max_model_len": [2048, 8192, None]}, [1]),
        ("endpoint-attribute-filter", "attribute: waiting\nalgorithm: {type: threshold, threshold: {operator: LessThan, value: 2}}", {"waiting": [1, 2, 3]}, [0]),
        ("endpoint-attribute-filter", "attribute: waiting\nonMissing: Fail\nalgorithm: {type: topK, topK: {k: 2, higherIsBetter: false}}", {"waiting": [5, 1, 3]}, [1, 2]),
        ("endpoint-attribute-filter", "attribute: waiting\nalgorithm: {type: topK, topK: {k: 1}}", {"waiting": [5, None, 3]}, [0, 1]),
        ("endpoint-attribute-filter", "attribute: waiting\nalgorithm: {type: percentile, percentile: {percentile: 34, higherIsBetter: false}}", {"waiting": [1, 2, 3]}, [0, 1]),
    ],
)  # fmt: skip
def test_load_filters(type_name: str, parameters: str, columns: dict[str, Any], expected: list[int]) -> None:
    made = endpoints(3, **columns)
    assert kept(type_name, parameters, made, request(made)) == expected


LABELS = {0: {"tier": "gold"}, 1: {"tier": "iron", "zone": "a"}, 2: {}}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("matchLabels: {tier: gold}", [0]),
        ("matchExpressions: [{key: tier, operator: In, values: [gold, iron]}]", [0, 1]),
        ("matchExpressions: [{key: tier, operator: NotIn, values: [gold]}]", [1, 2]),
        ("matchExpressions: [{key: zone, operator: Exists}]", [1]),
        ("matchExpressions: [{key: zone, operator: DoesNotExist}]", [0, 2]),
        ("matchLabels: {tier: iron}\nmatchExpressions: [{key: zone, operator: DoesNotExist}]", []),
        ("", [0, 1, 2]),
    ],
)
def test_label_selector(parameters: str, expected: list[int]) -> None:
    made = endpoints(3, {"endpoints": {row: {"labels": labels} for row, labels in LABELS.items()}})
    assert kept("label-selector-filter", parameters, made, request(made)) == expected
    assert kept("by-label-selector", parameters, made, request(made)) == expected


def test_by_label() -> None:
    made = endpoints(3, {"endpoints": {row: {"labels": labels} for row, labels in LABELS.items()}})
    assert kept("by-label", "label: tier\nvalidValues: [iron]", made, request(made)) == [1]
    assert kept("by-label", "label: tier\nvalidValues: [iron]\nallowsNoLabel: true", made, request(made)) == [1, 2]


def test_roles_come_from_the_label_or_the_agents_own_setting() -> None:
    roles = ["encode", "prefill", "decode", "encode-prefill", "prefill-decode", "encode-prefill-decode", "both"]
    cold: dict[int, Any] = {row: {"labels": {"llm-d.ai/role": role}} for row, role in enumerate(roles)}
    cold[7] = {"role": "prefill"}
    made = endpoints(9, {"endpoints": cold})  # row 8 says nothing
    asked = request(made)
    assert kept("decode-filter", "", made, asked) == [2, 4, 5, 6, 8]
    assert kept("prefill-filter", "", made, asked) == [1, 3, 4, 5, 6, 7]
    assert kept("encode-filter", "", made, asked) == [0, 3, 5]


@pytest.mark.parametrize(
    ("matched", "tokens", "parameters", "expected"),
    [
        ([10, 8, 7], [0, 0, 0], "", [0, 1]),  # 0.8 of 10 blocks
        ([7, 0, 0], [0, 0, 0], "", [0, 1, 2]),  # nobody has enough
        ([10, 0, 0], [400_000, 0, 0], "", [0, 1, 2]),  # 25 s of prefill in the way
        ([10, 0, 0], [200_000, 0, 0], "", [0]),
        ([10, 0, 0], [400_000, 0, 0], "maxTTFTPenaltyMs: 0", [0]),
        ([10, 0, 0], [0, 0, 0], "explorationProbability: 1", [0, 1, 2]),
    ],
)
def test_prefix_affinity(matched: list[int], tokens: list[int], parameters: str, expected: list[int]) -> None:
    made = endpoints(3, tokens=tokens)
    assert kept("prefix-cache-affinity-filter", parameters, made, request(made, matched=matched, blocks=10)) == expected


@pytest.mark.parametrize(
    ("matched", "waiting", "expected"),
    [
        ([10, 8, 7], [0, 0, 0], [0, 1]),
        ([10, 0, 0], [8, 0, 0], [0]),
        ([10, 0, 0], [9, 0, 0], [0, 1, 2]),
        ([10, 9, 0], [9, 8, 0], [0, 1]),  # the better of the warm ones is near enough
        ([10, 0, 0], [9, None, None], [0]),  # nothing to compare with
        ([0, 0, 0], [0, 0, 0], [0, 1, 2]),
    ],
)
def test_sticky_prefix_lets_go_of_a_busy_endpoint(matched: list[int], waiting: list[Any], expected: list[int]) -> None:
    made = endpoints(3, waiting=waiting, running=[0, 0, 0])
    assert kept("sticky-prefix-filter", "", made, request(made, matched=matched, blocks=10)) == expected
    assert kept("sticky-prefix-filter", "", made, request(made)) == [0, 1, 2]
    queue_alone = endpoints(3, waiting=waiting)
    assert kept("sticky-prefix-filter", "", queue_alone, request(queue_alone, matched=matched, blocks=10)) == expected


def test_lora_affinity_keeps_holders_then_those_with_room() -> None:
    cold = {"adapters": ["a"]}
    columns: dict[str, Any] = {"lora_max": [1, 1, 2, None], "lora_count": [1, 1, 1, None]}
    made = endpoints(4, cold, lora_running_0=[1, 0, 0, 0], **columns)
    assert kept("lora-affinity-filter", "threshold: 1", made, request(made, model="a")) == [0]
    assert kept("lora-affinity-filter", "threshold: 0", made, request(made, model="a")) == [2]
    assert kept("lora-affinity-filter", "", made, request(made, model="other")) == [2]
    served = {"adapters": ["a"], "endpoints": {0: {"models": ["base", "idle"], "adapters": ["idle"]}}}
    listed = endpoints(2, served, lora_max=[1, 1], lora_count=[1, 0])
    assert kept("lora-affinity-filter", "", listed, request(listed, model="base")) == [0, 1]
    assert kept("lora-affinity-filter", "", listed, request(listed, model="idle")) == [1]
    full = endpoints(2, cold, lora_max=[1, 1], lora_count=[1, 1])
    assert kept("lora-affinity-filter", "", full, request(full, model="other")) == [0, 1]


def test_header_based_testing_and_subset() -> None:
    made = endpoints(3, {"endpoints": {2: {"address": "10.0.0.1:9000"}}})
    headers = {"test-epp-endpoint-selection": "10.0.0.1, 10.9.9.9:1"}
    assert kept("header-based-testing-filter", "", made, request(made, headers=headers)) == [1, 2]
    assert kept("header-based-testing-filter", "", made, request(made)) == []
    assert kept("subset-filter", "", made, request(made, subset=("10.0.0.1:9000",))) == [2]
    assert kept("subset-filter", "", made, request(made)) == [0, 1, 2]


def test_detectors_as_filters_drop_the_full_ones_and_fail_open() -> None:
    made = endpoints(3, waiting=[0, 5, 0], kv_cache_usage=[0.1, 0.1, 0.9])
    assert kept("utilization-detector", "", made, request(made)) == [0]
    full = endpoints(2, waiting=[9, 9], kv_cache_usage=[0.9, 0.9])
    assert kept("utilization-detector", "", full, request(full)) == [0, 1]
    busy = endpoints(2, in_flight=[100, 99])
    assert kept("concurrency-detector", "", busy, request(busy)) == [1]


FILTERS = sorted(entry.type for entry in TYPES.values() if entry.kind == "filter")
NEEDED = {
    "utilization-filter": "conditions: [{metric: waiting-queue, maxValue: 2}]",
    "endpoint-attribute-filter": RANGE, "by-label": "label: tier", "label-selector-filter": SELECTOR,
}  # fmt: skip


@pytest.mark.parametrize("type_name", FILTERS)
@pytest.mark.parametrize("size", [1, 9, 1024])
def test_a_filter_gives_one_verdict_per_candidate_and_survives_ignorance(type_name: str, size: int) -> None:
    made = endpoints(size)  # every measured value is unknown
    mask = build(type_name, NEEDED.get(type_name, ""))(made, request(made, matched=[1] * size, blocks=2))
    assert mask is None or (mask.dtype == np.bool_ and mask.shape == (size,))

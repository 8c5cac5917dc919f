"""Every scorer: values from its formula, and what must hold for all of them."""

# ruff: noqa: E501 - a table reads best with one case a line
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.scheduling.synthetic import build, endpoints, request
from zerohop_picker.scheduling.registry import TYPES
from zerohop_picker.state.endpoints import Endpoints

NAN = math.nan
ATTRIBUTE = "attributeKey: kv_cache_usage\nalgorithm: {type: linear_lower_is_better}"
REQUIRED = {
    "endpoint-attribute-scorer": ATTRIBUTE,
    "header-label-affinity-scorer": "headerName: x-tier\nlabelKey: tier",
}
SCORERS = sorted(entry.type for entry in TYPES.values() if entry.kind == "scorer")


def near(values: Sequence[float]) -> Any:
    return pytest.approx(list(values), nan_ok=True)


@pytest.mark.parametrize(
    ("type_name", "parameters", "candidates", "expected"),
    [
        ("queue-scorer", "", {"waiting": [0, 5, 10]}, [1, 0.5, 0]),
        ("queue-scorer", "", {"waiting": [3, 3, 3]}, [1, 1, 1]),
        ("queue-scorer", "", {"waiting": [0, None, 4]}, [1, NAN, 0]),
        ("queue-scorer", "", {"waiting": [None, None, None]}, [NAN, NAN, NAN]),
        ("queue-scorer", "", {"waiting": [0, 0, 2], "picks": [2, 1, 0]}, [0, 1, 0]),
        ("running-requests-size-scorer", "", {"running": [2, 4, 6]}, [1, 0.5, 0]),
        ("running-requests-size-scorer", "", {"running": [0, 0, 0], "picks": [0, 4, 2]}, [1, 0, 0.5]),
        ("kv-cache-utilization-scorer", "", {"kv_cache_usage": [0.25, 1.0, 1.2]}, [0.75, 0, 0]),
        ("kv-cache-utilization-scorer", "", {"kv_cache_usage": [0.5, None, 0.0]}, [0.5, NAN, 1]),
        ("load-aware-scorer", "", {"waiting": [0, 64, 500]}, [0.5, 0.25, 0]),
        ("load-aware-scorer", "threshold: 10", {"waiting": [5, None, 10]}, [0.25, NAN, 0]),
        ("active-request-scorer", "", {"in_flight": [0, 5, 10]}, [1, 0.5, 0]),
        ("active-request-scorer", "idleThreshold: 5\nmaxBusyScore: 0.8", {"in_flight": [0, 6, 12]}, [1, 0.4, 0]),
        ("active-request-scorer", "", {"waiting": [0, 5, 0], "running": [0, 0, 10]}, [1, 0.5, 0]),
        ("token-load-scorer", "queueThresholdTokens: 200", {"tokens": [0, 100, 400]}, [0.5, 0, 0]),
        ("least-loaded-scorer", "", {"waiting": [0, 1, 0], "kv_cache_usage": [0, 0, 1]}, [1, 0.5, 1 / 1.9]),
        ("least-loaded-scorer", "", {"waiting": [0, 1, None], "kv_cache_usage": [0.5, 0, 0], "slowdown": [2, 1, 1]},
         [1 / 2.45, 0.5, NAN]),
        ("gpu-headroom-scorer", "", {"gpu_utilization": [0.2, 0.2, None], "slowdown": [1, 2, 1]}, [0.8, 0.4, NAN]),
        ("endpoint-attribute-scorer", ATTRIBUTE, {"kv_cache_usage": [0.2, 0.4, 0.6]}, [1, 0.5, 0]),
        ("endpoint-attribute-scorer", ATTRIBUTE, {"kv_cache_usage": [0.4, 0.4, None]}, [1, 1, NAN]),
        ("endpoint-attribute-scorer",
         "attributeKey: gpu_memory\nalgorithm: {type: linear_higher_is_better, normalization: {fixedRange: {min: 0, max: 2}}}",
         {"gpu_memory": [0.5, 1.0, 3.0]}, [0.25, 0.5, 1]),
    ],
)  # fmt: skip
def test_formula(type_name: str, parameters: str, candidates: dict[str, Any], expected: list[float]) -> None:
    made = endpoints(3, **candidates)
    assert list(build(type_name, parameters)(made, request(made))) == near(expected)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [("", [1, 0.5, 0]), ("matchLengthWeight: 0.5\nmatchLengthScaleTokens: 1024", [1, 0.5, 0]),
     ("matchLengthWeight: 1\nmatchLengthScaleTokens: 2048", [0.25, 0.0625, 0])],
)  # fmt: skip
def test_prefix_score_is_the_ratio_and_by_choice_the_square_of_the_length(
    parameters: str, expected: list[float]
) -> None:
    made = endpoints(3)
    asked = request(made, matched=[4, 2, 0], blocks=4)
    scores = build("prefix-cache-scorer", parameters)(made, asked)
    if "0.5" in parameters:
        expected = [1.0, 0.5 * 0.25 + 0.5 * 0.5, 0.0]
    assert list(scores) == near(expected)


LORA = {"adapters": ["a", "b"]}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("a", [1.0, 0.6, 0.8, 0.0]),  # runs; waits in a full one; room; full
        ("b", [0.8, 0.0, 0.8, 1.0]),
        ("new", [0.8, 0.0, 0.8, 0.0]),  # no endpoint has reported it: only room counts
    ],
)
def test_lora_affinity(model: str, expected: list[float]) -> None:
    made = endpoints(
        4,
        LORA,
        lora_running_0=[1, 0, 0, 2],
        lora_waiting_0=[0, 1, 0, 0],
        lora_max=[2, 1, 2, 1],
        lora_count=[1, 1, 0, 1],
    )
    assert list(build("lora-affinity-scorer")(made, request(made, model=model))) == near(expected)


def test_lora_affinity_has_no_opinion_on_a_base_model_and_none_without_lora() -> None:
    made = endpoints(
        2, {"endpoints": {0: {"models": ["base"]}, 1: {"models": ["base"]}}}, lora_max=[1, None], lora_count=[1, None]
    )
    assert np.isnan(build("lora-affinity-scorer")(made, request(made, model="base"))).all()
    assert list(build("lora-affinity-scorer")(made, request(made, model="x"))) == near([0.0, NAN])


def test_adapters_in_both_slots_of_a_wide_table_are_told_apart() -> None:
    cold = {"adapters": [None] * 64 + ["far"]}
    made = endpoints(2, cold, lora_running_0=[1, 0], lora_running_1=[0, 1], lora_max=[1, 1], lora_count=[1, 1])
    assert list(build("lora-affinity-scorer")(made, request(made, model="far"))) == [0.0, 1.0]


def test_context_length_prefers_the_tightest_range() -> None:
    ranges = {0: "0-1000", 1: "0-100000", 2: "2000-4000", 3: "junk"}
    cold = {"endpoints": {row: {"labels": {"llm-d.ai/context-length-range": text}} for row, text in ranges.items()}}
    made = endpoints(5, cold)
    scores = build("context-length-aware")(made, request(made, body=b"x" * 2000))  # 500 tokens
    tight = 0.3 + 0.7 * (0.7 / 1.1 + 0.3 * 0.5)
    wide = 0.3 + 0.7 * (0.7 / 11 + 0.3 * 99_500 / 100_000)
    assert list(scores) == near([tight, wide, 0.3 / 2.5, 0.5, 0.5])


def test_header_label_affinity() -> None:
    made = endpoints(2, {"endpoints": {0: {"labels": {"tier": "gold"}}}})
    scorer = build("header-label-affinity-scorer", "headerName: X-Tier\nlabelKey: tier")
    assert list(scorer(made, request(made, headers={"x-tier": "gold"}))) == [1.0, 0.0]
    assert list(scorer(made, request(made))) == [0.0, 0.0]


def test_no_hit_lru_sends_cold_requests_to_the_endpoint_that_waited_longest() -> None:
    made = endpoints(3)
    scorer = build("no-hit-lru-scorer")
    cold = request(made, matched=[0, 0, 0], blocks=4)
    assert list(scorer(made, cold)) == [1.0, 1.0, 1.0]
    scorer.picked(cold, made, 1)
    scorer.picked(cold, made, 0)
    assert list(scorer(made, cold)) == [0.0, 0.5, 1.0]
    warm = request(made, matched=[0, 1, 0], blocks=4)
    assert list(scorer(made, warm)) == [0.5, 0.5, 0.5]
    scorer.picked(warm, made, 2)
    assert list(scorer(made, cold)) == [0.0, 0.5, 1.0]


def test_no_hit_lru_remembers_no_more_than_its_size() -> None:
    made = endpoints(3)
    scorer = build("no-hit-lru-scorer", "lruSize: 1")
    cold = request(made)
    for row in (0, 1):
        scorer.picked(cold, made, row)
    assert list(scorer(made, cold)) == [1.0, 0.0, 1.0]


# What holds for every scorer.

value = st.one_of(st.none(), st.floats(0, 1e6, width=32))
share = st.one_of(st.none(), st.floats(0, 1, width=32))


@st.composite
def pools(draw: st.DrawFn) -> dict[str, list[Any]]:
    size = draw(st.integers(1, 12))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=size, max_size=size))

    return {
        "waiting": column(value), "running": column(value), "kv_cache_usage": column(share),
        "slowdown": column(st.one_of(st.none(), st.floats(1, 10, width=32))), "gpu_utilization": column(share),
        "lora_max": column(st.one_of(st.none(), st.integers(0, 4))), "lora_count": column(st.one_of(st.none(), st.integers(0, 4))),
        "lora_running_0": column(st.integers(0, 3)), "picks": column(st.integers(0, 50)),
        "in_flight": column(st.integers(0, 50)), "tokens": column(st.integers(0, 100_000)),
    }  # fmt: skip


def scored(type_name: str, pool: dict[str, list[Any]], order: Sequence[int] | None = None) -> list[float]:
    size = len(pool["waiting"])
    order = range(size) if order is None else order
    columns: dict[str, Any] = {name: [column[i] for i in order] for name, column in pool.items()}
    made: Endpoints = endpoints(size, LORA, **columns)
    matched = [i % 3 for i in order]
    asked = request(made, model="a", matched=matched, blocks=3)
    return [float(score) for score in build(type_name, REQUIRED.get(type_name, ""))(made, asked)]


@pytest.mark.parametrize("type_name", SCORERS)
@settings(max_examples=15, deadline=None)
@given(pool=pools(), data=st.data())
def test_scores_lie_in_range_and_follow_their_endpoint(
    type_name: str, pool: dict[str, list[Any]], data: st.DataObject
) -> None:
    scores = scored(type_name, pool)
    assert len(scores) == len(pool["waiting"])
    assert all(math.isnan(score) or 0.0 <= score <= 1.0 for score in scores)
    order = data.draw(st.permutations(range(len(scores))))
    assert scored(type_name, pool, order) == near([scores[i] for i in order])


@pytest.mark.parametrize("type_name", SCORERS)
@pytest.mark.parametrize("size", [1, 7, 1024])
def test_equal_endpoints_score_alike_in_any_number(type_name: str, size: int) -> None:
    pool: dict[str, Any] = {"waiting": [2.0] * size, "running": [3.0] * size, "kv_cache_usage": [0.5] * size, "slowdown": [1.0] * size,
            "gpu_utilization": [0.5] * size, "lora_max": [2.0] * size, "lora_count": [1.0] * size}  # fmt: skip
    made = endpoints(size, LORA, **pool)
    scores = build(type_name, REQUIRED.get(type_name, ""))(made, request(made, model="a"))
    assert len(scores) == size
    assert len(set(scores.tolist())) == 1


@pytest.mark.parametrize(
    "type_name", ["queue-scorer", "running-requests-size-scorer", "load-aware-scorer", "least-loaded-scorer",
                  "active-request-scorer", "kv-cache-utilization-scorer"],
)  # fmt: skip
@settings(max_examples=15, deadline=None)
@given(loads=st.lists(st.integers(0, 100), min_size=2, max_size=10))
def test_more_load_never_scores_higher(type_name: str, loads: list[int]) -> None:
    ratio = [load / 100 for load in loads]
    pool: dict[str, Any] = {"waiting": loads, "running": loads, "kv_cache_usage": ratio, "in_flight": loads}
    made = endpoints(len(loads), **pool)
    scores = build(type_name)(made, request(made)).tolist()
    ranked = sorted(range(len(loads)), key=lambda i: loads[i])
    assert all(scores[a] >= scores[b] - 1e-12 for a, b in itertools.pairwise(ranked))

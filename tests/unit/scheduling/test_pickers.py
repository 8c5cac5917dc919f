"""Pickers: order, ties, and the distributions they promise."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerohop_picker.scheduling.pickers import max_score, power_of_two, random_order, weighted_random

DRAWS = 6000
#: 99.9th percentile of chi-square for the degrees of freedom used here.
CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}


def chi_square(counts: Counter[int], shares: list[float]) -> float:
    total = sum(shares)
    return sum((counts[i] - DRAWS * s / total) ** 2 / (DRAWS * s / total) for i, s in enumerate(shares) if s)


def draws(picker: Callable[..., list[int]], scores: list[float]) -> Counter[int]:
    source = random.Random(42)
    return Counter(picker(np.array(scores), 1, source)[0] for _ in range(DRAWS))


def test_max_score_orders_by_score() -> None:
    for count in (1, 2, 4, 5):
        assert max_score(np.array([0.1, 0.9, 0.5, 0.7, 0.0]), count, random.Random(1)) == [1, 3, 2, 0, 4][:count]


@pytest.mark.parametrize("size", [3, 1024, 5000])
def test_max_score_breaks_exact_ties_at_random_but_no_other(size: int) -> None:
    scores = np.zeros(size)
    assert len({max_score(scores, 1, random.Random(seed))[0] for seed in range(40)}) > 2
    scores[1] = 1e-9
    assert {max_score(scores, 1, random.Random(seed))[0] for seed in range(40)} == {1}


def test_ties_are_even() -> None:
    assert chi_square(draws(max_score, [1.0, 1.0, 1.0, 0.5]), [1, 1, 1]) < CHI_SQUARE[2]


def test_random_is_even_whatever_the_scores() -> None:
    assert chi_square(draws(random_order, [9.0, 0.0, 1.0, 5.0, 2.0]), [1, 1, 1, 1, 1]) < CHI_SQUARE[4]


def test_weighted_random_follows_the_scores_and_never_draws_a_zero() -> None:
    counts = draws(weighted_random, [1.0, 2.0, 5.0, 0.0])
    assert counts[3] == 0
    assert chi_square(counts, [1, 2, 5]) < CHI_SQUARE[2]


def test_weighted_random_is_even_when_no_score_is_above_zero() -> None:
    assert chi_square(draws(weighted_random, [0.0, 0.0, -1.0]), [1, 1, 1]) < CHI_SQUARE[2]


def test_power_of_two_never_takes_the_worst_first_and_follows_its_distribution() -> None:
    counts = draws(power_of_two, [0.0, 1.0, 2.0, 3.0])
    assert counts[0] == 0
    assert chi_square(counts, [0, 1, 2, 3]) < CHI_SQUARE[2]  # C(rank, 1) / C(4, 2)


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.floats(-1, 10), min_size=1, max_size=20),
    count=st.integers(1, 25),
    seed=st.integers(0, 1000),
    picker=st.sampled_from([max_score, random_order, weighted_random, power_of_two]),
)
def test_a_list_has_no_endpoint_twice_and_no_more_than_asked(
    scores: list[float], count: int, seed: int, picker: Callable[..., list[int]]
) -> None:
    chosen = picker(np.array(scores), count, random.Random(seed))
    assert 1 <= len(chosen) <= min(count, len(scores))
    assert len(set(chosen)) == len(chosen)
    assert all(0 <= index < len(scores) for index in chosen)
    if picker is weighted_random and any(score > 0 for score in scores):
        assert all(scores[index] > 0 for index in chosen)

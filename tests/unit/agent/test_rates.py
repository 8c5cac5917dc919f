from __future__ import annotations

import pytest

from zerohop_agent.rates import MEAN_WINDOW_NS, RATE_WINDOW_NS, Rates
from zerohop_agent.signals import Signals

SECOND = 1_000_000_000
START = 100 * SECOND


def feed(rates: Rates, at_s: float, **values: float) -> bool:
    return rates.update(Signals(**values), START + int(at_s * SECOND))  # type: ignore[arg-type]


def test_the_first_reading_gives_no_rate_and_counts_as_progress() -> None:
    rates = Rates()
    assert feed(rates, 0, prompt_tokens=1000, generation_tokens=500, ttft_sum_s=10, ttft_count=5)
    assert rates.prompt_tokens_rate is None
    assert rates.generation_tokens_rate is None
    assert rates.ttft_mean_s is None


def test_rates_are_over_the_window_and_fall_to_zero_when_nothing_moves() -> None:
    rates = Rates()
    for tick in range(41):
        feed(rates, tick * 0.05, generation_tokens=tick * 5)
    assert rates.generation_tokens_rate == pytest.approx(100)
    for tick in range(1, 81):
        feed(rates, 2 + tick * 0.05, generation_tokens=200)
    assert rates.generation_tokens_rate == 0
    assert RATE_WINDOW_NS < 4 * SECOND


def test_two_readings_close_together_give_no_rate() -> None:
    rates = Rates()
    feed(rates, 0, generation_tokens=0)
    feed(rates, 0.05, generation_tokens=100)
    assert rates.generation_tokens_rate is None


def test_means_come_from_what_was_added_in_the_window() -> None:
    rates = Rates()
    feed(rates, 0, ttft_sum_s=1000, ttft_count=1000, itl_sum_s=50, itl_count=1000)
    feed(rates, 1, ttft_sum_s=1000.4, ttft_count=1002, itl_sum_s=50.5, itl_count=1010)
    assert rates.ttft_mean_s == pytest.approx(0.2)
    assert rates.itl_mean_s == pytest.approx(0.05)


def test_a_mean_stays_while_nothing_new_is_observed() -> None:
    rates = Rates()
    feed(rates, 0, ttft_sum_s=0, ttft_count=0)
    feed(rates, 1, ttft_sum_s=3, ttft_count=10)
    for second in range(2, 40):
        feed(rates, second, ttft_sum_s=3, ttft_count=10)
    assert rates.ttft_mean_s == pytest.approx(0.3)


def test_old_observations_leave_the_mean() -> None:
    rates = Rates()
    feed(rates, 0, itl_sum_s=0, itl_count=0)
    feed(rates, 1, itl_sum_s=100, itl_count=100)
    after = MEAN_WINDOW_NS // SECOND + 3
    for second in range(2, after + 2):
        feed(rates, second, itl_sum_s=100 + 0.01 * (second - 1), itl_count=100 + second - 1)
    assert rates.itl_mean_s == pytest.approx(0.01)


def test_a_counter_that_goes_back_is_a_restart() -> None:
    rates = Rates()
    feed(rates, 0, generation_tokens=10_000)
    feed(rates, 1, generation_tokens=10_100)
    assert rates.generation_tokens_rate == pytest.approx(100)
    assert feed(rates, 2, generation_tokens=3)
    assert rates.generation_tokens_rate is None
    assert rates.resets == 1
    feed(rates, 3, generation_tokens=53)
    assert rates.generation_tokens_rate == pytest.approx(50)


def test_a_new_process_is_a_restart_even_when_its_counters_are_higher() -> None:
    rates = Rates()
    feed(rates, 0, generation_tokens=10, process_start_s=1_700_000_000.0)
    feed(rates, 1, generation_tokens=20, process_start_s=1_700_000_000.4)
    assert rates.resets == 0
    feed(rates, 2, generation_tokens=9000, process_start_s=1_700_000_100.0)
    assert rates.resets == 1
    assert rates.generation_tokens_rate is None


def test_progress_is_any_counter_that_moves() -> None:
    rates = Rates()
    feed(rates, 0, prompt_tokens=5, generation_tokens=5, steps=5)
    assert not feed(rates, 1, prompt_tokens=5, generation_tokens=5, steps=5)
    assert feed(rates, 2, prompt_tokens=5, generation_tokens=5, steps=6)
    assert feed(rates, 3, prompt_tokens=6, generation_tokens=5, steps=6)
    assert feed(rates, 4, prompt_tokens=6, generation_tokens=6, steps=6)


def test_without_counters_progress_cannot_be_told() -> None:
    rates = Rates()
    feed(rates, 0, running=3)
    assert not rates.counts_progress
    feed(rates, 1, running=3, steps=1)
    assert rates.counts_progress


def test_a_counter_that_leaves_the_page_makes_its_rate_unknown() -> None:
    rates = Rates()
    feed(rates, 0, generation_tokens=0, prompt_tokens=0)
    feed(rates, 1, generation_tokens=100, prompt_tokens=100)
    feed(rates, 2, prompt_tokens=200)
    assert rates.generation_tokens_rate is None
    assert rates.prompt_tokens_rate == pytest.approx(100)

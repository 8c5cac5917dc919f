"""Picks since: how many a worker counts for an endpoint that its gauges do not show yet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.scheduling.synthetic import NOW_NS, view
from zerohop_picker.state.loads import HORIZON_NS, Loads
from zerohop_picker.state.view import Floats


class Log:
    """A pick log of eight entries."""

    def __init__(self) -> None:
        self.ns = np.zeros(64, np.uint64)
        self.row = np.zeros(64, np.uint32)
        self.tokens = np.zeros(64, np.uint32)
        self.head = 0

    def add(self, ns: int, row: int, tokens: int = 0) -> None:
        at = self.head % len(self.ns)
        self.ns[at], self.row[at], self.tokens[at] = ns, row, tokens
        self.head += 1


class Logs:
    def __init__(self, *logs: Log) -> None:
        self._logs = list(logs)

    def logs(self) -> list[Log]:
        return self._logs

    def in_flight(self, generations: object) -> tuple[Floats, Floats]:
        return np.zeros(8), np.zeros(8)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("pick"), st.integers(0, 1), st.integers(0, 2)),
            st.tuples(st.just("observe"), st.integers(0, 2), st.just(0)),
            st.tuples(st.just("look"), st.just(0), st.just(0)),
        ),
        max_size=120,
    )
)
def test_picks_since_is_the_count_of_entries_newer_than_each_gauge(steps: list[tuple[str, int, int]]) -> None:
    """However the calls interleave, the running counts agree with a count from scratch."""
    logs = (Log(), Log())
    loads = Loads(Logs(*logs))
    now, observed, history, sequence = NOW_NS, [NOW_NS] * 3, [], 1
    seen = view(3, observed_ns=observed)
    for kind, first, second in steps:
        now += 1000
        if kind == "pick":
            logs[first].add(now, second, 10)
            history.append((now, second))
        elif kind == "observe":
            observed[first] = now
            sequence += 1
            seen = view(3, observed_ns=list(observed))
            seen.sequence = sequence
        loads.settle(seen, now)
        expected = [sum(1 for ns, row in history[-128:] if row == r and ns > observed[r]) for r in range(3)]
        if len(history) <= 64:
            assert loads.picks[:3].tolist() == expected
            assert loads.picked_tokens[:3].tolist() == [10 * count for count in expected]


def test_a_burst_of_more_picks_than_are_counted_one_by_one() -> None:
    log = Log()
    loads = Loads(Logs(log))
    for index in range(100):
        log.add(NOW_NS + 1 + index, index % 2, 5)
    log.add(NOW_NS + 200, 99)  # a row beyond the table
    loads.settle(view(3), NOW_NS + 300)
    assert loads.picks[:3].tolist() == [31.0, 32.0, 0.0]  # the ring holds the last 64, one of them foreign
    later = view(3, observed_ns=[NOW_NS, NOW_NS + 80, NOW_NS])
    later.sequence = 2
    loads.settle(later, NOW_NS + 300)
    assert loads.picks[:3].tolist() == [31.0, 10.0, 0.0]
    assert loads.picked_tokens[:3].tolist() == [155.0, 50.0, 0.0]


def test_the_mean_prompt_follows_the_picks_and_forgets_slowly() -> None:
    log = Log()
    loads = Loads(Logs(log))
    seen = view(1)
    loads.settle(seen, NOW_NS)
    assert loads.mean_tokens > 0  # before the first pick a waiting request counts for something, too
    for count, expected in ((1, 100.0), (10, 100.0)):
        for _ in range(count):
            log.add(NOW_NS + 1, 0, 100)
        loads.settle(seen, NOW_NS + 2)
        assert loads.mean_tokens == pytest.approx(expected)
    log.add(NOW_NS + 3, 0, 1000)
    loads.settle(seen, NOW_NS + 4)
    assert 100 < loads.mean_tokens < 200


@pytest.mark.parametrize("newer", range(12))
def test_the_first_pick_that_counts_is_found_wherever_it_lies(newer: int) -> None:
    log = Log()
    loads = Loads(Logs(log))
    for index in range(20):
        log.add(NOW_NS + index, 0)
    loads.settle(view(1, observed_ns=[NOW_NS + 19 - newer]), NOW_NS + 100)
    assert loads.picks[0] == newer


def test_picks_older_than_the_horizon_are_not_counted() -> None:
    log = Log()
    loads = Loads(Logs(log))
    log.add(NOW_NS + 1, 0)
    loads.settle(view(1, observed_ns=[0]), NOW_NS + HORIZON_NS + 2)
    assert loads.picks[0] == 0

"""How often a server is read: slower when it suffers, and back again."""

from __future__ import annotations

from zerohop_agent.modelserver.pacing import GRID_NS, Pacing

MS = 1_000_000
S = 1_000_000_000


def make() -> Pacing:
    return Pacing(50 * MS, 5 * S, 1 * S)


def test_a_quick_server_is_read_at_the_base() -> None:
    pacing = make()
    for _ in range(100):
        pacing.succeeded(12 * MS)
    assert pacing.interval_ns == 50 * MS


def test_a_slow_answer_never_takes_more_than_a_quarter_of_the_interval() -> None:
    pacing = make()
    for _ in range(40):
        pacing.succeeded(100 * MS)
    assert 390 * MS <= pacing.interval_ns <= 400 * MS
    for _ in range(40):
        pacing.succeeded(2 * MS)
    assert pacing.interval_ns == 50 * MS


def test_one_slow_answer_moves_little() -> None:
    pacing = make()
    for _ in range(10):
        pacing.succeeded(2 * MS)
    pacing.succeeded(60 * MS)
    assert pacing.interval_ns < 80 * MS


def test_no_back_off_beyond_the_bound() -> None:
    pacing = make()
    for _ in range(100):
        pacing.succeeded(60 * S)
    assert pacing.interval_ns == 5 * S


def test_failures_double_the_wait_up_to_a_second_and_a_success_ends_it() -> None:
    pacing = make()
    intervals = []
    for _ in range(8):
        pacing.failed()
        intervals.append(pacing.interval_ns // MS)
    assert intervals == [100, 200, 400, 800, 1000, 1000, 1000, 1000]
    for _ in range(100_000):
        pacing.failed()
    assert pacing.interval_ns == S
    pacing.succeeded(MS)
    assert pacing.interval_ns == 50 * MS


def test_a_floor_holds_and_goes() -> None:
    pacing = make()
    pacing.set_floor(1 * S)
    assert pacing.interval_ns == 1 * S
    pacing.set_floor(0)
    assert pacing.interval_ns == 50 * MS


def test_readings_meet_on_a_grid_and_keep_their_interval() -> None:
    pacing = make()
    start = 1_000_000_007
    times = [pacing.first_start_ns(start, step / 100) for step in range(100)]
    assert {time % GRID_NS for time in times} == {0}
    assert len(set(times)) == 2
    assert all(start < time <= start + 50 * MS for time in times)
    for late in (0, 3 * MS, -2 * MS):
        assert pacing.next_start_ns(1000 * MS + late, 1010 * MS, 0.9) == 1050 * MS
    # a reading that took longer than the interval is followed by the next slot
    assert pacing.next_start_ns(1000 * MS, 1051 * MS, 0.5) == 1075 * MS
    assert pacing.next_start_ns(1000 * MS, 1075 * MS, 0.5) == 1100 * MS


def test_short_intervals_keep_their_own_time() -> None:
    pacing = Pacing(10 * MS, 5 * S, S)
    waits = [pacing.next_start_ns(0, 0, step / 100) for step in range(100)]
    assert 9 * MS < min(waits) < max(waits) < 11 * MS
    assert len(set(waits)) == 100
    assert pacing.next_start_ns(0, 30 * MS, 0.5) == 30 * MS
    assert 0 <= pacing.first_start_ns(0, 0.99) < 10 * MS

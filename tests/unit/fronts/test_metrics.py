from __future__ import annotations

import json

import pytest

from zerohop_picker.counting import Histogram, Labelled
from zerohop_picker.metrics import Metrics, render


def test_pages_of_workers_become_one_exposition() -> None:
    pages = {}
    for worker in ("0", "1"):
        metrics = Metrics()
        metrics.counter("picks", "Picks.").increment(int(worker) + 1)
        metrics.counters("ended", "Ends.", "status").labels("5").increment()
        metrics.gauge("streams", "Open.", lambda: 7)
        histogram = metrics.histogram("seconds", "Time.", (0.1, 1.0))
        for value in (0.05, 0.1, 0.5, 3):
            histogram.observe(value)
        pages[worker] = json.loads(json.dumps(metrics.page()))  # as it crosses to a supervisor
    lines = render(pages).decode().splitlines()
    assert 'zerohop_picker_picks_total{worker="1"} 2.0' in lines
    assert 'zerohop_picker_ended_total{status="5",worker="0"} 1.0' in lines
    assert 'zerohop_picker_streams{worker="0"} 7.0' in lines
    assert 'zerohop_picker_seconds_bucket{le="0.1",worker="0"} 2.0' in lines
    assert 'zerohop_picker_seconds_bucket{le="+Inf",worker="0"} 4.0' in lines
    assert 'zerohop_picker_seconds_sum{worker="0"} 3.65' in lines
    assert sum(line.startswith("# HELP") for line in lines) == 4


def test_label_values_are_bounded() -> None:
    family = Labelled(Histogram, ("reason",))
    for number in range(Labelled.LIMIT + 50):
        family.labels(str(number)).observe(1)
    assert len(list(family.items())) == Labelled.LIMIT + 1
    assert dict(family.items())[("other",)].total == 50


def test_a_name_is_taken_once() -> None:
    metrics = Metrics()
    metrics.counter("picks", "Picks.")
    with pytest.raises(ValueError, match="exists already"):
        metrics.gauge("picks", "Picks again.")

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from zerohop_console.demo.box import Server
from zerohop_console.demo.client import Outcome
from zerohop_console.demo.load import Ramp, Sent
from zerohop_console.demo.summary import Result, quantile, summarise, table
from zerohop_process.address import Address


def result(**changes: Any) -> Result:
    servers = [Server(name, Address("127.0.0.1", 1), None, role)
               for name, role in (("a", "normal"), ("b", "slow"), ("c", "drained"))]  # fmt: skip
    good = Outcome(status=200, first_byte_s=0.02, total_s=0.1)
    finished = [Sent(index, good, "abc"[index % 3], 5.0) for index in range(300)]
    fields: dict[str, Any] = {
        "finished": finished, "servers": servers, "picks": {"a": 150, "b": 60, "c": 90}, "drained_ns": {"c": 400},
        "picked_s": [0.0012, 0.0013], "round_robin_s": [0.001, 0.001], "duration_s": 3.0,
    }  # fmt: skip
    return Result(**{**fields, **changes})


def test_a_good_run_keeps_its_promises() -> None:
    found = summarise(result())
    assert (found["requests"], found["errors"], found["broken_promises"]) == (300, 0, [])
    assert found["latency_ms"]["added"] == {"p50": 0.2, "p99": 0.3}
    assert found["age_at_decision_ms"] == {"p50": 5.0, "p99": 5.0}
    assert [endpoint["share"] for endpoint in found["endpoints"]] == [0.5, 0.2, 0.3]
    assert found["endpoints"][2]["served_after_drain"] == 0
    assert found["endpoints"][0]["served_after_drain"] is None


@pytest.mark.parametrize(
    ("changes", "promise"),
    [
        ({"finished": [Sent(0, Outcome(status=503), None, None)]}, "1 of 1 requests failed"),
        ({"finished": []}, "0 of 0 requests failed"),
        ({"picks": {"a": 150, "b": 90, "c": 90}}, "b was three times slower and did not get the smallest share"),
        ({"drained_ns": {"c": 290}}, "c served 3 requests after its drain"),
    ],
)
def test_a_broken_promise_is_named(changes: dict[str, Any], promise: str) -> None:
    assert promise in summarise(result(**changes))["broken_promises"]


def test_what_was_not_measured_is_unknown() -> None:
    found = summarise(result(finished=[], picked_s=[], picks={}))
    assert found["latency_ms"]["added"] == {"p50": None, "p99": None}
    assert found["endpoints"][0]["share"] is None
    Console(quiet=True).print(table(found))


def test_a_quantile_is_a_value_that_occurred() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [quantile(values, share) for share in (0.0, 0.25, 0.5, 0.99, 1.0)] == [1.0, 1.0, 2.0, 4.0, 4.0]
    assert quantile([], 0.5) is None


def test_the_rate_rises_from_first_to_last() -> None:
    moments = list(Ramp(101, 10.0, 100.0).send_times_s())
    assert moments[0] == 0.0
    assert moments[1] == pytest.approx(0.1)
    assert moments[100] - moments[99] == pytest.approx(1 / 99.1, rel=0.01)

"""Load reports in a response header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerohop_process.orca import parse_orca


@pytest.mark.parametrize(
    ("header", "numbers"),
    [
        ("TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3",
         {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 3}),
        ("TEXT cpu_utilization=0.3,mem_utilization=0.8", {"cpu_utilization": 0.3, "mem_utilization": 0.8}),
        ('JSON {"named_metrics":{"kv_cache_utilization":0.5},"rps_fractional":2}',
         {"kv_cache_utilization": 0.5, "rps_fractional": 2}),
        ('JSON {"request_cost":{"a":1}}', {"request_cost.a": 1}),
        ("TEXT a=nan,b=inf,c=1_0,d=,e=x,=3,f", {}),
        ('JSON {"a":true,"b":"0.5","c":null,"d":[1]}', {"b": 0.5}),
        ("JSON [1]", {}),
        ("JSON {", {}),
        ("BIN AAAA", {}),
        ("", {}),
        ("TEXT " + "a=1," * 10_000, {}),
    ],
)  # fmt: skip
def test_known_forms(header: str, numbers: dict[str, float]) -> None:
    assert parse_orca(header) == numbers


@given(st.sampled_from(["TEXT ", "JSON ", ""]), st.text(max_size=60))
def test_anything(kind: str, rest: str) -> None:
    assert all(isinstance(name, str) and isinstance(value, float) for name, value in parse_orca(kind + rest).items())

"""What a case's detail may hold - addresses in brackets, a picker's own bytes - reaches every kind of report."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import pytest
from rich.console import Console

from zerohop_console.conformance.picker.report import as_junit, print_table
from zerohop_console.conformance.picker.runner import Result, Verdict
from zerohop_console.conformance.picker.script import Level

DETAIL = "'[fd00::1]:8000' is none of [fd00::2]:8000: refused with \x00\x1b[1m"


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.SKIP])
def test_details_are_shown_as_they_are(verdict: Verdict) -> None:
    results = [Result("a/case", Level.MUST, "A rule [of all].", "RFC", verdict, DETAIL, 0.1)]
    out = io.StringIO()
    print_table(results, Console(file=out, width=300))
    assert "[of all]" in out.getvalue()
    assert "'[fd00::1]:8000' is none of [fd00::2]:8000" in out.getvalue()
    (case,) = ElementTree.fromstring(as_junit(results, "unix:/p")).iter("testcase")  # noqa: S314 - our own text
    assert "[fd00::1]:8000" in case[0].get("message", "")

"""What a conformance suite found, as a table for people, as JSON and as JUnit XML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from xml.etree import ElementTree

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["Level", "Report", "Result", "Verdict", "as_json", "as_junit", "print_table"]


class Level(StrEnum):
    """How strongly a protocol demands an item."""

    MUST = "must"
    SHOULD = "should"
    MAY = "may"


class Verdict(StrEnum):
    """How an item ended."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    SKIP = "skip"


_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.SKIP: "yellow"}


@dataclass(frozen=True, slots=True)
class Result:
    """One item: what is demanded, what was found, and what is lost where it fails."""

    name: str
    level: Level
    verdict: Verdict
    demands: str
    found: str
    loses: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """One run of a suite against one target. `facts` are what was learnt about the target on the way."""

    suite: str
    version: str
    target: str
    results: Sequence[Result]
    facts: dict[str, object]

    def count(self, level: Level, verdict: Verdict) -> int:
        """How many items of a level ended so."""
        return sum(result.level is level and result.verdict is verdict for result in self.results)

    def failed(self, levels: Sequence[Level]) -> bool:
        """Whether an item of one of these levels failed."""
        return any(self.count(level, Verdict.FAIL) for level in levels)


def print_table(report: Report, console: Console) -> None:
    """Print a line per item, for failures with what is lost, then a summary by level."""
    table = Table("item", "level", "result", "found", box=None, pad_edge=False)
    for result in report.results:
        colour = _COLOURS[result.verdict]
        said = escape(result.found)
        if result.verdict is Verdict.FAIL:
            said = f"[red]{said}[/red]\n{escape(result.demands)}"
            said += f"\nwithout it: {escape(result.loses)}" if result.loses else ""
        table.add_row(result.name, result.level, f"[{colour}]{result.verdict}[/{colour}]", said)
    console.print(table)
    for name, fact in report.facts.items():
        console.print(f"{name}: {fact}", highlight=False, markup=False)
    for level in Level:
        passed, failed, skipped = (report.count(level, verdict) for verdict in Verdict)
        if passed or failed or skipped:
            console.print(f"{level}: {passed} passed, {failed} failed, {skipped} skipped", highlight=False)


def as_json(report: Report) -> str:
    """Return the report as JSON."""
    summary = {level: {verdict: report.count(level, verdict) for verdict in Verdict} for level in Level}
    return json.dumps(
        {
            "suite": report.suite,
            "version": report.version,
            "target": report.target,
            "facts": report.facts,
            "summary": summary,
            "items": [
                {
                    "name": result.name,
                    "level": result.level,
                    "result": result.verdict,
                    "demands": result.demands,
                    "found": result.found,
                    "loses": result.loses,
                }
                for result in report.results
            ],
        },
        indent=2,
        default=str,
    )


def as_junit(report: Report) -> str:
    """Return the report as JUnit XML, one suite per level. Only `must` items fail there; others are marked as
    skipped."""
    root = ElementTree.Element("testsuites", name=f"{report.suite} {report.version} {report.target}")
    for level in Level:
        of_level = [result for result in report.results if result.level is level]
        failing = [result for result in of_level if result.verdict is Verdict.FAIL and level is Level.MUST]
        passing = [result for result in of_level if result.verdict is Verdict.PASS]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=level.value,
            tests=str(len(of_level)),
            failures=str(len(failing)),
            skipped=str(len(of_level) - len(failing) - len(passing)),
        )
        for result in of_level:
            case = ElementTree.SubElement(suite, "testcase", name=result.name, classname=report.suite)
            if result in failing:
                failure = ElementTree.SubElement(case, "failure", message=printable(result.found))
                failure.text = printable(f"{result.demands}\nwithout it: {result.loses}")
            elif result.verdict is not Verdict.PASS:
                ElementTree.SubElement(case, "skipped", message=printable(result.found))
    return ElementTree.tostring(root, encoding="unicode")


def printable(text: str) -> str:
    """Drop what XML 1.0 cannot hold."""
    return "".join(char for char in text if char in "\t\n" or " " <= char < "\ud800" or "\ue000" <= char < "\ufffe")

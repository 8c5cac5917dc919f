"""What the suite found, as a table, as JSON and as JUnit XML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from xml.etree import ElementTree

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zerohop_console.conformance.picker.cases import SUITE_VERSION
from zerohop_console.conformance.picker.runner import Result, Verdict
from zerohop_console.conformance.picker.script import Level
from zerohop_console.conformance.report import printable

_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.SKIP: "yellow"}


def counts(results: Sequence[Result]) -> dict[Level, dict[Verdict, int]]:
    """How many cases of each level ended how."""
    return {
        level: {
            verdict: sum(result.level is level and result.verdict is verdict for result in results)
            for verdict in Verdict
        }
        for level in Level
    }


def print_table(results: Sequence[Result], console: Console) -> None:
    """One line per case, failures with the rule and what is wrong, then a summary by level."""
    table = Table("case", "level", "result", "what the protocol demands", box=None, pad_edge=False)
    for result in results:
        said = escape(result.demands)
        if result.verdict is Verdict.FAIL:
            said += f"\n[red]{escape(result.detail)}[/red]"
        elif result.verdict is Verdict.SKIP:
            said += f" [yellow]({escape(result.detail)})[/yellow]"
        colour = _COLOURS[result.verdict]
        table.add_row(result.name, result.level, f"[{colour}]{result.verdict}[/{colour}]", said)
    console.print(table)
    for level, found in counts(results).items():
        console.print(
            f"{level}: {found[Verdict.PASS]} passed, {found[Verdict.FAIL]} failed, {found[Verdict.SKIP]} skipped"
        )


def as_json(results: Sequence[Result], target: str) -> str:
    """The report as JSON: suite version, target, a summary and every case."""
    return json.dumps(
        {
            "suite": "zerohop-conformance-picker",
            "version": SUITE_VERSION,
            "target": target,
            "summary": {level: dict(found) for level, found in counts(results).items()},
            "cases": [
                {
                    "name": result.name,
                    "level": result.level,
                    "result": result.verdict,
                    "demands": result.demands,
                    "source": result.source,
                    "detail": result.detail,
                    "seconds": round(result.seconds, 4),
                }
                for result in results
            ],
        },
        indent=2,
    )


def as_junit(results: Sequence[Result], target: str) -> str:
    """The report as JUnit XML, one suite per level."""
    root = ElementTree.Element("testsuites", name=f"zerohop conformance picker {SUITE_VERSION} {target}")
    for level in Level:
        of_level = [result for result in results if result.level is level]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=level.value,
            tests=str(len(of_level)),
            failures=str(sum(result.verdict is Verdict.FAIL for result in of_level)),
            skipped=str(sum(result.verdict is Verdict.SKIP for result in of_level)),
        )
        for result in of_level:
            case = ElementTree.SubElement(suite, "testcase", name=result.name, time=f"{result.seconds:.4f}")
            if result.verdict is Verdict.FAIL:
                failure = ElementTree.SubElement(case, "failure", message=printable(result.detail))
                failure.text = f"{result.demands}\n{result.source}"
            elif result.verdict is Verdict.SKIP:
                ElementTree.SubElement(case, "skipped", message=printable(result.detail))
    return ElementTree.tostring(root, encoding="unicode")

"""The migration page lists every flag that we take, and says what the program does with it."""

from __future__ import annotations

from pathlib import Path

from zerohop_picker import compat

PAGE = Path(__file__).resolve().parents[3] / "docs" / "migration.md"


def test_the_page_and_the_table_agree() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(("| `--", "| `-v`"))]
    assert rows == [f"| `{'-' if flag.name == 'v' else '--'}{flag.name}` | {flag.ours} |" for flag in compat.FLAGS]

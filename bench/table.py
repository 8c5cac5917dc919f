"""Rows of figures as an aligned text table (which is also valid Markdown)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def text(rows: Sequence[dict[str, Any]]) -> str:
    """The rows under their keys; a missing value is a dash."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[name.replace("_", " ") for name in names], *([str(row.get(name, "-")) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)

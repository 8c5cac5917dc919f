"""Puts the figures of a run into a page, between `<!-- bench:NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from pathlib import Path


def write(path: Path, name: str, text: str) -> None:
    """Replace the block NAME of the page. Raises: ValueError when the page has none."""
    page = path.read_text()
    pattern = re.compile(rf"(<!-- bench:{re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"{path} has no block bench:{name}")
    path.write_text(pattern.sub(lambda found: f"{found[1]}{text.strip()}\n{found[2]}", page))


def names(path: Path) -> list[str]:
    """The blocks of the page, in order."""
    return re.findall(r"<!-- bench:(\S+) -->", path.read_text())

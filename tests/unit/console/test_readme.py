"""The README promises files; they must exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "page", sorted(path.name for path in [REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md")])
)
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    path = next(found for found in (REPOSITORY / page, REPOSITORY / "docs" / page) if found.exists())
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []

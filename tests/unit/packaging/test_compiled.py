"""What a compiled wheel holds in C, and what its modules may not contain. That it works is what test-compiled shows."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
HOOK = runpy.run_path(str(REPOSITORY / "picker" / "hatch_build.py"))


@pytest.mark.parametrize("library", sorted(HOOK["LIBRARIES"]))
def test_every_module_that_is_to_be_compiled_is_there_and_can_be(library: str) -> None:
    found = HOOK["sources"](REPOSITORY, HOOK["LIBRARIES"][library])
    assert all(library in path.parts for path in found)
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("text", "pattern", "says"),
    [
        ("from dataclasses import dataclass\n\n@dataclass(slots=True)\nclass Two: ...\n", "*.py", "NamedTuple"),
        ("", "gone.py", "gone.py: no such module"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_its_place(tmp_path: Path, text: str, pattern: str, says: str) -> None:
    (tmp_path / "module.py").write_text(text)
    with pytest.raises(ValueError, match=says):
        HOOK["sources"](tmp_path, (pattern,))

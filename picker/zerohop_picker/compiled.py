"""Whether this installation has the modules that every request passes through in compiled form (hatch_build.py)."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def compiled() -> bool:
    """Return whether it has: the import system takes a compiled module before its source."""
    return any(_HERE.glob("counting.*.so"))

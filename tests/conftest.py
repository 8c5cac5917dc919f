"""Fixtures that every test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.processes import Processes, processes

# How long one example takes says more of the machine's other work than of the code.
settings.register_profile("zerohop", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("zerohop")


@pytest.fixture
def run() -> Iterator[Processes]:
    """Start child processes; all of them are gone after the test."""
    with processes() as started:
        yield started


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of data that is not part of the repository: captured pages, custom resources, traces."""
    root = Path(os.environ.get("ZEROHOP_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    if not (root / "data").is_dir():
        pytest.skip(f"no shared data at {root}; set ZEROHOP_SHARED to the folder that holds data/")
    return root / "data"

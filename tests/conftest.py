"""Fixtures that every test may use."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.processes import Processes, processes
from zerohop_process import log

# How long one example takes says more of the machine's other work than of the code.
settings.register_profile("zerohop", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("zerohop")


# Started in the background of a shell, Ctrl-C is ignored, and children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Take back what a command that ran in this process has configured: its handler holds a stream of that test alone.

    Left in place, it makes each line that a later test logs a trace-back of 100 lines about a closed file.
    """
    loggers = (logging.getLogger(), logging.getLogger("zerohop"))
    levels, form = [logger.level for logger in loggers], log.current_format()
    yield
    for handler in loggers[0].handlers[:]:
        if type(handler) is logging.StreamHandler:
            loggers[0].removeHandler(handler)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    log._format = form


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

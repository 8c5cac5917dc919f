"""`zerohop picker`: answers Envoy's external processing calls with the endpoint to use."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from zerohop_picker import compat
from zerohop_picker import config as settings
from zerohop_process import lifecycle, log


def prepare(words: Sequence[str]) -> list[str]:
    """Return the command line to parse: one with the flags of llm-d-router or GIE's picker is said in ours."""
    return compat.prepare(words)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `zerohop picker`."""
    settings.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM. Returns the exit code. Raises: ConfigError."""
    config = settings.from_arguments(arguments)
    log.configure(config.log_format, "picker", config.log_level)
    if config.workers > 1:
        from zerohop_picker import supervisor

        return lifecycle.run(supervisor.serve(config))
    from zerohop_picker import worker

    return lifecycle.run(worker.serve_alone(config))

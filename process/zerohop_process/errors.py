"""The one error that ends a process before it serves."""

from __future__ import annotations

from pathlib import Path


class ConfigError(Exception):
    """What a person wrote cannot be used.

    The message names the place (a flag, or ``file:line``), what is wrong there, and what to write instead. A program
    that meets one prints ``zerohop PROGRAM: error: MESSAGE`` on standard error and exits with 2, without a traceback.
    """


def reason(error: OSError, path: Path | str | None = None) -> str:
    """Say an operating-system error in words: ``/etc/x.yaml: permission denied``, without errno or class name."""
    text = (error.strerror or str(error)).lower()
    where = path if path is not None else error.filename
    return f"{where}: {text}" if where is not None else text

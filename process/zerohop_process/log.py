"""Logs on standard error: one line per event, as text for people or as JSON for collectors."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

Format = Literal["text", "json"]

_ROOT = "zerohop"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_format: Format = "text"


def configure(format: Format, program: str, level: str = "info", stream: TextIO | None = None) -> None:  # noqa: A002
    """Send every logger of ours, and warnings of other libraries, to ``stream`` (standard error) in ``format``.

    ``program`` stands in each line; ``level`` is ``debug``, ``info``, ``warning`` or ``error``.
    """
    global _format
    _format = format
    formatter = _JsonFormatter(program) if format == "json" else _TextFormatter(program)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(_LEVELS[level])


def current_format() -> Format:
    """Return the format of the last ``configure``; text before it."""
    return _format


def get(name: str) -> logging.Logger:
    """Return the logger for ``name`` below our own root, so that one level governs all of ours."""
    return logging.getLogger(f"{_ROOT}.{name}")


def event(logger: logging.Logger, level: str, message: str, /, **fields: object) -> None:
    """Log ``message`` with ``fields`` as ``key=value`` pairs (text) or members (JSON)."""
    number = _LEVELS[level]
    if logger.isEnabledFor(number):
        logger.log(number, message, extra={"fields": fields})


class OncePerChange:
    """Remembers the last state per key, so that a lasting fault is one line and its end another.

    Not thread safe. Holds one entry per key ever seen; ``forget`` removes one.
    """

    def __init__(self) -> None:
        self._states: dict[Hashable, object] = {}

    def changed(self, key: Hashable, state: object) -> bool:
        """Return whether ``state`` is not the last one of ``key``, and remember it. The first state is a change."""
        if key in self._states and self._states[key] == state:
            return False
        self._states[key] = state
        return True

    def log(
        self, logger: logging.Logger, level: str, key: Hashable, state: object, message: str, /, **fields: object
    ) -> bool:
        """Log ``message`` if ``state`` is new for ``key``; return whether it was."""
        if not self.changed(key, state):
            return False
        event(logger, level, message, **fields)
        return True

    def forget(self, key: Hashable) -> None:
        """Drop what is known about ``key``."""
        self._states.pop(key, None)


class _TextFormatter(logging.Formatter):
    """``2026-11-30T19:10:00.123Z info agent: endpoint added address=10.0.0.1:8000``."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        pairs = "".join(f" {key}={_quoted(value)}" for key, value in fields.items())
        message = record.getMessage().replace("\n", "\\n")
        return f"{_time(record)} {record.levelname.lower()} {self._program}: {message}{pairs}"


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, program, logger, message, then the fields of the event."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "program": self._program,
            "logger": record.name.removeprefix(f"{_ROOT}."),
            "message": record.getMessage(),
        }
        for key, value in _fields(record).items():
            line.setdefault(key, value)
        return json.dumps(line, default=str, ensure_ascii=False)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = dict(getattr(record, "fields", None) or {})
    if record.exc_info and record.exc_info[1] is not None:
        fields["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
    return fields


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z"


def _quoted(value: object) -> str:
    text = str(value)
    if not text or any(character.isspace() or character in '"=' or not character.isprintable() for character in text):
        return json.dumps(text, ensure_ascii=False)
    return text

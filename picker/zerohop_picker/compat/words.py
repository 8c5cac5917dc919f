"""A command line as Go's flag package reads it: `-flag value`, `--flag=value`, `-bool`, `--bool=false`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from zerohop_picker.compat.flags import BY_NAME
from zerohop_process.errors import ConfigError

#: Go's strconv.ParseBool.
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))


def split(word: str) -> tuple[str | None, str | None]:
    """Name and inline value of one of their flags; (None, None) for any other word."""
    match = re.match(r"^--?([a-zA-Z][-a-zA-Z0-9]*)(?:=(.*))?$", word, re.DOTALL)
    if match is None or match[1] not in BY_NAME:
        return None, None
    return match[1], match[2]


def read(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Their flags by name (the last one counts), and the words that are not theirs."""
    given: dict[str, str] = {}
    rest: list[str] = []
    position = 0
    while position < len(words):
        name, value = split(words[position])
        if name is None:
            rest.append(words[position])
            # The value of one of our flags is not looked at, whatever it looks like.
            if words[position].startswith("--") and "=" not in words[position] and position + 1 < len(words):
                follower = words[position + 1]
                if not follower.startswith("-"):
                    rest.append(follower)
                    position += 1
            position += 1
            continue
        position += 1
        if BY_NAME[name].kind == "bool":
            given[name] = _boolean(name, "true" if value is None else value)
            continue
        if value is None:
            if position == len(words):
                raise ConfigError(f"--{name}: a value is missing")
            value, position = words[position], position + 1
        given[name] = value
    return given, rest


def _boolean(name: str, text: str) -> str:
    if text in _TRUE:
        return "true"
    if text in _FALSE:
        return "false"
    raise ConfigError(f"--{name}: {text!r} is neither true nor false")

"""Fields of a spec, checked as a CRD's validation checks them. `place` is where the field is, for the message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_LABEL_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")


class Invalid(ValueError):
    """An object breaks a rule of its CRD; the message names the field."""


def mapping(value: Any, place: str) -> Mapping[str, Any]:
    """A mapping that must be there."""
    if value is None:
        raise Invalid(f"{place} is missing")
    if not isinstance(value, dict):
        raise Invalid(f"{place} is not a mapping")
    return value


def items(value: Any, place: str, fewest: int, most: int) -> list[Any]:
    """A list of `fewest` to `most` items, which must be there."""
    if value is None and fewest:
        raise Invalid(f"{place} is missing")
    if not isinstance(value, list) or not fewest <= len(value) <= most:
        raise Invalid(f"{place} must be a list of {fewest} to {most} items")
    return value


def text(value: Any, place: str, shortest: int, longest: int) -> str:
    """Text that must be there."""
    if value is None:
        raise Invalid(f"{place} is missing")
    if not isinstance(value, str) or not shortest <= len(value) <= longest:
        raise Invalid(f"{place} must be text of {shortest} to {longest} characters")
    return value


def name(value: Any, place: str) -> str:
    """An object's name, which must be there."""
    return text(value, place, 1, 253)


def integer(value: Any, place: str, least: int, most: int) -> int:
    """A whole number that must be there."""
    if value is None:
        raise Invalid(f"{place} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Invalid(f"{place} must be a whole number from {least} to {most}")
    return value


def choice(value: Any, place: str, choices: tuple[str, ...], default: str) -> str:
    """One of `choices`; `default` where it is absent."""
    if value is None:
        return default
    if value not in choices:
        raise Invalid(f"{place} must be one of {', '.join(choices)}")
    return str(value)


def pattern(value: Any, place: str, pattern: re.Pattern[str], default: str) -> str:
    """Text that fits `pattern` whole; `default` where it is absent."""
    if value is None:
        return default
    if not isinstance(value, str) or len(value) > 253 or not pattern.match(value):
        raise Invalid(f"{place}: {str(value)[:80]!r} is not allowed")
    return value


def labels(value: Any, place: str, fewest: int, most: int) -> dict[str, str]:
    """`fewest` to `most` labels, each with a value that a label can have."""
    labels = mapping(value, place)
    if not fewest <= len(labels) <= most:
        raise Invalid(f"{place} must have {fewest} to {most} labels")
    for key, text in labels.items():
        if not isinstance(key, str) or not isinstance(text, str) or len(text) > 63 or not _LABEL_VALUE.match(text):
            raise Invalid(f"{place}: {str(key)[:80]!r} has a value that no label can have")
    return dict(labels)

"""Durations and sizes as people write them (``50ms``, ``16MiB``) and as programs count them (ns, bytes)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TypeVar

from zerohop_process.errors import ConfigError

_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_BYTES = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
    "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30,
}  # fmt: skip
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")

T = TypeVar("T")


def duration_ns(text: str, *, place: str) -> int:
    """Return the nanoseconds of ``50ms``, ``5s``, ``1m30s`` or ``0``.

    A number without a unit is refused, because half of the tools that people know would read it as seconds and half
    as milliseconds.

    Raises: ConfigError, with ``place`` in front.
    """
    text = text.strip()
    if text == "0":
        return 0
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        hint = (
            f"; write {text}ms or {text}s"
            if re.fullmatch(r"\d+(\.\d+)?", text)
            else "; write it like 50ms, 5s or 1m30s"
        )
        raise ConfigError(f"{place}: {text!r} is not a duration{hint}")
    return round(sum(float(number) * _NS[unit] for number, unit in parts))


def size_bytes(text: str, *, place: str) -> int:
    """Return the bytes of ``16MiB``, ``64kB``, ``512Ki`` or ``4096`` (bytes).

    Raises: ConfigError, with ``place`` in front.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match[2] or "B" if match else ""
    if match is None or unit not in _BYTES:
        raise ConfigError(f"{place}: {text!r} is not a size; write it like 4096, 64kB or 16MiB")
    return round(float(match[1]) * _BYTES[unit])


def duration_text(duration: int) -> str:
    """Return ``duration`` (ns) in the largest unit that keeps it readable: ``50ms``, ``1.5s``, ``12us``."""
    if duration == 0:
        return "0"
    for unit in ("h", "m", "s", "ms", "us"):
        if abs(duration) >= _NS[unit]:
            return f"{duration / _NS[unit]:.4g}{unit}"
    return f"{duration}ns"


def size_text(size: float) -> str:
    """Return ``size`` (bytes) in binary units: ``16MiB``, ``1.5GiB``, ``512B``."""
    for unit in ("GiB", "MiB", "KiB"):
        if abs(size) >= _BYTES[unit]:
            return f"{size / _BYTES[unit]:.4g}{unit}"
    return f"{size:.0f}B"


def argument(parse: Callable[..., T]) -> Callable[[str], T]:
    """Turn ``parse(text, place=...)`` into an argparse type whose message argparse prints behind the flag's name."""

    def convert(text: str) -> T:
        try:
            return parse(text, place="")
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error).removeprefix(": ")) from None

    return convert


#: argparse types: ``parser.add_argument("--scrape-interval", type=duration, default=duration("50ms"))``
duration = argument(duration_ns)
size = argument(size_bytes)

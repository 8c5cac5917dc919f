"""Reads `Signals` off a page with the least work that stays right.

A server prints the same lines in the same order again and again; only the values move. So the first page is *surveyed*:
one split on newlines, one `startswith` with all wanted names per line, and a careful look at the few dozen lines that
hit. What comes out is a `Plan`: which line carries which value, and how values become fields. The next page is read by
the plan - it must have as many lines (counted when anything moved by a line's length), and each wanted line must
stand near where it stood, with the same name and
labels
and in the same order - and is surveyed again as soon as that is not so. A series that took the place of another line
while everything else stayed put would be missed; so every `SURVEY_EVERY` pages the wanted lines are looked for anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress, count
from operator import methodcaller

from zerohop_agent.modelserver.mapping import EngineMapping, Pick, Ratio, Source, Total
from zerohop_agent.modelserver.sources import CONVERTED, LIMITS, Series, Step, step_of
from zerohop_agent.modelserver.text import parse_labels, parse_value, split_sample
from zerohop_agent.signals import Signals

__all__ = ["SURVEY_EVERY", "Plan", "Vocabulary", "find_hits", "survey"]

#: pages between two looks for new series on a page that looks unchanged
SURVEY_EVERY = 32
#: bytes by which a line may have moved, beyond the line before it, through longer or shorter values on the way
_SLACK_BYTES = 512
#: no sample line is shorter (name, space, value, newline); a page that grew or shrank by less has no other lines.
#: Counting
#: lines is a third of the work on an unchanged page.
_LINE_BYTES = 8
_UNKNOWN = math.nan


class Vocabulary:
    """The sample names that one mapping wants, in one spelling (`:` or `_`), ready for a survey."""

    def __init__(self, mapping: EngineMapping, spelling: Callable[[str], str]) -> None:
        self.mapping = mapping
        names = {pick.name for sources in mapping.fields.values() for source in sources for pick in picks(source)}
        self.names: dict[bytes, str] = {spelling(name).encode(): name for name in sorted(names)}
        self.starts: tuple[bytes, ...] = _shortest(self.names)


def picks(source: Source) -> tuple[Pick, ...]:
    """Return every pick that a source reads."""
    if isinstance(source, Total):
        return (source.pick, *source.plus)
    if isinstance(source, Ratio):
        return (source.part, source.whole)
    return (source.pick,)


def _shortest(names: Mapping[bytes, str]) -> tuple[bytes, ...]:
    """Drop names that begin with another one: the shorter finds them too."""
    kept: list[bytes] = []
    for name in sorted(names):
        if not kept or not name.startswith(kept[-1]):
            kept.append(name)
    return tuple(kept)


class Plan:
    """Where the values of one page stand. Good for every page with the same wanted lines at the same places."""

    __slots__ = ("_hits", "_lines", "_longer", "_newlines", "_size", "_steps", "multi_process", "names")

    def __init__(
        self,
        newlines: int,
        size: int,
        hits: list[int] | None,
        longer: Sequence[tuple[int, bytes]],
        lines: Sequence[tuple[int, bytes]],
        steps: Sequence[tuple[str, Step]],
        names: frozenset[str],
        multi_process: bool,
    ) -> None:
        self._newlines = newlines
        self._size = size
        # None: a hit was malformed, and could be right on the next page
        self._hits = hits
        #: hits whose name is longer than the wanted one
        self._longer = tuple(longer)
        #: offset of the start, the start itself (newline, name, labels), its length
        self._lines = tuple((offset, start, len(start)) for offset, start in lines)
        self._steps = tuple(
            (field, *LIMITS.get(field, (0.0, 0.0)), CONVERTED.get(field), step) for field, step in steps
        )
        #: names of the wanted series that were there
        self.names = names
        #: one series per process of the server (`pid` label): it gathers its page from files of all its processes
        self.multi_process = multi_process

    def confirmed_by(self, lines: Sequence[bytes], hits: list[int]) -> bool:
        """Return whether a page that this plan has just read, with these hits, has no wanted series besides."""
        return self._hits == hits and all(lines[number].startswith(name) for number, name in self._longer)

    def read(self, page: bytes) -> Signals | None:
        """Return what the page says, or None if its lines moved and a survey is due."""
        values: list[float] = []
        append = values.append
        shift = end = 0
        counted = False
        for offset, start, length in self._lines:
            at = offset + shift
            if at < end or not page.startswith(start, at):
                at = page.find(start, max(end, at - _SLACK_BYTES), at + length + _SLACK_BYTES)
                if at < 0:
                    return None
                if not counted and abs(at - offset - shift) >= _LINE_BYTES:
                    if page.count(b"\n") != self._newlines:
                        return None
                    counted = True
                shift = at - offset
            at += length
            end = page.find(b"\n", at)
            rest = page[at:end] if end >= 0 else page[at:]
            try:
                value = float(rest)
            except ValueError:
                value = _careful(rest)
            else:
                if b"_" in rest:
                    value = _UNKNOWN
            append(value)
        if not counted and abs(len(page) - self._size - shift) >= _LINE_BYTES and page.count(b"\n") != self._newlines:
            return None
        return self._signals(values)

    def _signals(self, values: Sequence[float]) -> Signals:
        signals = Signals()
        for field, low, high, convert, step in self._steps:
            result: object = values[step] if isinstance(step, int) else step(values)
            if isinstance(result, float):
                if not low <= result <= high:  # false for NaN
                    continue
                if convert is not None:
                    result = convert(result)
            setattr(signals, field, result)
        return signals


def _careful(rest: bytes) -> float:
    value = parse_value(rest)
    return _UNKNOWN if value is None else value


def find_hits(lines: Sequence[bytes], vocabulary: Vocabulary) -> list[int]:
    """Return the numbers of the lines that start with a wanted name, in order. A few may turn out to be no samples."""
    return list(compress(count(), map(methodcaller("startswith", vocabulary.starts), lines)))


def survey(page: bytes, vocabulary: Vocabulary) -> Plan:
    """Look at every line of a page once and return the plan to read it by."""
    lines = page.split(b"\n")
    hits = find_hits(lines, vocabulary)
    names = vocabulary.names
    found: dict[str, list[Series]] = {}
    kept: list[tuple[int, bytes]] = []
    longer: list[tuple[int, bytes]] = []
    malformed = multi_process = False
    after = 0
    for number in hits:
        line = lines[number]
        # From the second line on the newline in front belongs to the start, so that no part of a line can pass for it.
        newline = b"\n" if number else b""
        # The whole line is looked for, behind the hit before it: only a hit is equal to a hit.
        offset = page.find(newline + line + b"\n", after)
        after = offset + len(newline) + len(line)
        sample = split_sample(line)
        labels = parse_labels(sample[1]) if sample is not None else None
        if sample is None or labels is None:
            malformed = True
            continue
        if (name := names.get(sample[0])) is None:  # a longer name that only begins like a wanted one
            longer.append((number, sample[0]))
            continue
        multi_process = multi_process or "pid" in labels
        found.setdefault(name, []).append(Series(len(kept), labels))
        kept.append((offset, newline + line[: sample[2]]))
    mapping = vocabulary.mapping
    steps = []
    for field, sources in mapping.fields.items():
        for source in sources:
            step = step_of(source, found, mapping)
            if step is not None:
                steps.append((field, step))
                break
    return Plan(
        len(lines) - 1, len(page), None if malformed else hits, longer, kept, steps, frozenset(found), multi_process
    )

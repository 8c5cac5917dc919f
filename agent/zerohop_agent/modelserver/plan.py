"""Reads `Signals` off a page with the least work that stays right.

A server prints the same lines in the same order again and again; only the values move. So the first page is *surveyed*:
one split on newlines, one `startswith` with all wanted names per line, and a careful look at the few dozen lines
that hit.
What comes out is a `Plan`: which line carries which value, and how values become fields. The next page is read by
the plan -
each wanted line must still stand where it stood with the same name and labels - and surveyed again as soon as
the number of lines or one wanted line differs. A series that took the place of another line while everything else
stayed
put would be missed; so every `SURVEY_EVERY` pages the wanted lines are looked for anew in any case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zerohop_agent.modelserver.mapping import (
    Combine,
    EngineMapping,
    LabelProduct,
    Names,
    Pick,
    Ratio,
    Source,
    Total,
)
from zerohop_agent.modelserver.text import parse_labels, parse_value, split_sample
from zerohop_agent.signals import Signals

__all__ = ["SURVEY_EVERY", "Plan", "Vocabulary", "find_hits", "survey"]

#: pages between two surveys of a page that looks unchanged
SURVEY_EVERY = 32

_UNKNOWN = math.nan
# What a field may hold; outside of it the value is a sentinel or nonsense, and the field unknown. DCGM-like blanks
# are above
# all of these. A share a little above 1 is over-commit and means full.
_COUNT = (0.0, 1e7)
_COUNTER = (0.0, 1e18)
LIMITS: Mapping[str, tuple[float, float]] = {
    "waiting": _COUNT,
    "running": _COUNT,
    "kv_cache_usage": (0.0, 1.05),
    "block_size": (1.0, 1e6),
    "num_blocks": (1.0, 1e10),
    "kv_capacity_tokens": (1.0, 1e13),
    "max_model_len": (1.0, 1e9),
    "prefix_queries": _COUNTER,
    "prefix_hits": _COUNTER,
    "prompt_tokens": _COUNTER,
    "generation_tokens": _COUNTER,
    "preemptions": _COUNTER,
    "steps": _COUNTER,
    "ttft_sum_s": _COUNTER,
    "ttft_count": _COUNTER,
    "itl_sum_s": _COUNTER,
    "itl_count": _COUNTER,
    "lora_max": (1.0, 1e6),
    "sleeping": (0.0, 1.0),
    "process_start_s": (1.0, 1e12),
}
_INTEGERS = frozenset({"block_size", "num_blocks", "max_model_len", "lora_max"})

#: indices into the values of a page: outer = ranks, inner = replicas of one rank
Groups = tuple[tuple[int, ...], ...]
#: values of the planned lines -> value of one field
Step = Callable[[Sequence[float]], object]


@dataclass(frozen=True, slots=True)
class Series:
    """One sample line that a mapping wants. `index` is its place among the plan's values."""

    index: int
    labels: Mapping[str, str]


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

    __slots__ = ("_hits", "_lines", "_steps", "line_count", "multi_process", "names")

    def __init__(
        self,
        line_count: int,
        hits: list[int] | None,
        lines: Sequence[tuple[int, bytes]],
        steps: Sequence[tuple[str, Step]],
        names: frozenset[str],
        multi_process: bool,
    ) -> None:
        self.line_count = line_count
        # None: a hit was malformed, and could be right on the next page
        self._hits = hits
        self._lines = tuple((index, start, len(start)) for index, start in lines)
        self._steps = tuple((field, *LIMITS.get(field, (0.0, 0.0)), step) for field, step in steps)
        #: names of the wanted series that were there
        self.names = names
        #: one series per process of the server (`pid` label): it gathers its page from files of all its processes
        self.multi_process = multi_process

    def confirmed_by(self, hits: list[int]) -> bool:
        """Return whether a page that this plan has just read, with wanted lines of these numbers, has no series besides."""
        return self._hits == hits

    def read(self, lines: Sequence[bytes]) -> Signals | None:
        """Return what the page says, or None if its lines moved and a survey is due."""
        if len(lines) != self.line_count:
            return None
        values: list[float] = []
        append = values.append
        for index, start, length in self._lines:
            line = lines[index]
            if not line.startswith(start):
                return None
            rest = line[length:]
            try:
                value = float(rest)
            except ValueError:
                value = _careful(rest)
            else:
                if b"_" in rest:
                    value = _UNKNOWN
            append(value)
        signals = Signals()
        for field, low, high, step in self._steps:
            result = step(values)
            if result.__class__ is float:
                if not low <= result <= high:
                    continue
                if field in _CONVERTED:
                    result = _CONVERTED[field](result)
            setattr(signals, field, result)
        return signals


def _careful(rest: bytes) -> float:
    value = parse_value(rest)
    return _UNKNOWN if value is None else value


_CONVERTED: Mapping[str, Callable[[float], object]] = {
    **dict.fromkeys(_INTEGERS, int),
    "sleeping": lambda awake: awake == 0.0,
    "kv_cache_usage": lambda usage: min(usage, 1.0),
}


def find_hits(lines: Sequence[bytes], vocabulary: Vocabulary) -> list[int]:
    """Return the numbers of the lines that start with a wanted name, in order. A few may turn out to be no samples."""
    starts = vocabulary.starts
    return [number for number, line in enumerate(lines) if line.startswith(starts)]


def survey(lines: Sequence[bytes], vocabulary: Vocabulary) -> Plan:
    """Look at every line of a page once and return the plan to read it by."""
    hits = find_hits(lines, vocabulary)
    names = vocabulary.names
    found: dict[str, list[Series]] = {}
    kept: list[tuple[int, bytes]] = []
    malformed = multi_process = False
    for number in hits:
        line = lines[number]
        sample = split_sample(line)
        labels = parse_labels(sample[1]) if sample is not None else None
        if sample is None or labels is None:
            malformed = True
            continue
        if (name := names.get(sample[0])) is None:  # a longer name that only begins like a wanted one
            continue
        multi_process = multi_process or "pid" in labels
        found.setdefault(name, []).append(Series(len(kept), labels))
        kept.append((number, line[: sample[2]]))
    mapping = vocabulary.mapping
    steps = []
    for field, sources in mapping.fields.items():
        for source in sources:
            step = _step(source, found, mapping)
            if step is not None:
                steps.append((field, step))
                break
    return Plan(len(lines), None if malformed else hits, kept, steps, frozenset(found), multi_process)


def _step(source: Source, found: Mapping[str, Sequence[Series]], mapping: EngineMapping) -> Step | None:
    """Return how `source` is computed from this page's values, or None where the page has no series for it."""
    if isinstance(source, Total):
        first = _groups(source.pick, found, mapping)
        if not first:
            return None
        rest = tuple(group for pick in source.plus for group in _groups(pick, found, mapping))
        return _total(first + rest, source.combine, source.scale)
    if isinstance(source, Ratio):
        part, whole = _groups(source.part, found, mapping), _groups(source.whole, found, mapping)
        return _ratio(_total(part, "sum", 1.0), _total(whole, "sum", 1.0)) if part and whole else None
    series = _matching(source.pick, found)
    if not series:
        return None
    if isinstance(source, Names):
        return _newest_names(series, source.labels)
    wanted = source.labels if isinstance(source, LabelProduct) else (source.label,)
    combine: Combine = "sum" if isinstance(source, LabelProduct) else source.combine
    # An info series repeated per process says the same thing each time.
    rows = {
        _rank(entry.labels, mapping): tuple(_number(entry.labels.get(label)) for label in wanted) for entry in series
    }
    numbers = [math.prod(row) for row in rows.values()]
    constant = _UNKNOWN if any(math.isnan(number) for number in numbers) else _COMBINE[combine](numbers)
    return None if math.isnan(constant) else lambda _values: constant


def _matching(pick: Pick, found: Mapping[str, Sequence[Series]]) -> list[Series]:
    series = found.get(pick.name, ())
    return [entry for entry in series if all(entry.labels.get(label) == value for label, value in pick.where)]


def _rank(labels: Mapping[str, str], mapping: EngineMapping) -> tuple[tuple[str, str], ...]:
    """Return what tells one rank's series from another's: all labels but those of replicas."""
    ignored = mapping.replica_labels
    # An info series has its values as labels; they are part of what it says, and two ranks differ in `engine`.
    return tuple(sorted(item for item in labels.items() if item[0] not in ignored))


def _groups(pick: Pick, found: Mapping[str, Sequence[Series]], mapping: EngineMapping) -> Groups:
    series = _matching(pick, found)
    for label in mapping.breakdown_labels:
        totals = [entry for entry in series if not entry.labels.get(label)]
        series = totals or series
    ranks: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for entry in series:
        ranks.setdefault(_rank(entry.labels, mapping), []).append(entry.index)
    return tuple(tuple(indices) for indices in ranks.values())


_COMBINE: Mapping[Combine, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "max": max,
    "min": min,
    "mean": lambda numbers: math.fsum(numbers) / len(numbers),
}


def _total(groups: Groups, combine: Combine, scale: float) -> Step:
    if len(groups) == 1 and len(groups[0]) == 1 and scale == 1.0:
        only = groups[0][0]
        return lambda values: values[only]
    join = _COMBINE[combine]

    def total(values: Sequence[float]) -> float:
        numbers = []
        for group in groups:
            replicas = [values[index] for index in group]
            largest = max(replicas)
            # One bad value makes the whole unknown: a sum without one rank would be a wrong number, not an old one.
            if not math.isfinite(largest) or any(value != value for value in replicas):
                return _UNKNOWN
            numbers.append(largest)
        return float(join(numbers)) * scale

    return total


def _ratio(part: Step, whole: Step) -> Step:
    def ratio(values: Sequence[float]) -> float:
        divisor = whole(values)
        dividend = part(values)
        if not isinstance(divisor, float) or not isinstance(dividend, float) or not divisor > 0.0:
            return _UNKNOWN
        return dividend / divisor

    return ratio


def _newest_names(series: Sequence[Series], labels: Sequence[str]) -> Step | None:
    sets: dict[int, frozenset[str]] = {}
    for entry in series:
        joined = next((entry.labels[label] for label in labels if label in entry.labels), None)
        if joined is not None:
            sets[entry.index] = frozenset(name for part in joined.split(",") if (name := part.strip()))
    if not sets:
        return None

    def newest(values: Sequence[float]) -> object:
        best, current = -math.inf, _UNKNOWN  # type: float, object
        for index, names in sets.items():
            if values[index] >= best:
                best, current = values[index], names
        return current

    return newest


def _number(text: str | None) -> float:
    """Return a label's number, or NaN for `None`, an empty or a missing label."""
    if text is None or "_" in text:
        return _UNKNOWN
    try:
        return float(text)
    except ValueError:
        return _UNKNOWN

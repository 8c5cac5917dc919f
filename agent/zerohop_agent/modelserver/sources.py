"""How the values on a page's lines become fields of `Signals`: the rules of `mapping`, applied to the series on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zerohop_agent.modelserver.mapping import Combine, EngineMapping, LabelProduct, Names, Pick, Ratio, Source, Total

__all__ = ["CONVERTED", "LIMITS", "Series", "Step", "step_of"]

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
#: Longer names are nonsense, and every name takes room in the snapshot of the whole node.
_NAME_LIMIT = 512
_INTEGERS = frozenset({"block_size", "num_blocks", "max_model_len", "lora_max"})

CONVERTED: Mapping[str, Callable[[float], object]] = {
    **dict.fromkeys(_INTEGERS, int),
    "sleeping": lambda awake: awake == 0.0,
    "kv_cache_usage": lambda usage: min(usage, 1.0),
}


#: indices into the values of a page: outer = ranks, inner = replicas of one rank
Groups = tuple[tuple[int, ...], ...]
#: values of the planned lines -> value of one field; a number is simply the index of that value
Step = Callable[[Sequence[float]], object] | int


@dataclass(frozen=True, slots=True)
class Series:
    """One sample line that a mapping wants. `index` is its place among the plan's values."""

    index: int
    labels: Mapping[str, str]


def step_of(source: Source, found: Mapping[str, Sequence[Series]], mapping: EngineMapping) -> Step | None:
    """Return how `source` is computed from this page's values, or None where the page has no series for it."""
    if isinstance(source, Total):
        first = _groups(source.pick, found, mapping)
        if not first:
            return None
        rest = tuple(group for pick in source.plus for group in _groups(pick, found, mapping))
        groups = first + rest
        if len(groups) == 1 and len(groups[0]) == 1 and source.scale == 1.0:
            return groups[0][0]
        return _total(groups, source.combine, source.scale)
    if isinstance(source, Ratio):
        part, whole = _groups(source.part, found, mapping), _groups(source.whole, found, mapping)
        return _ratio(_total(part, "sum", 1.0), _total(whole, "sum", 1.0)) if part and whole else None
    series = _matching(source.pick, found)
    if not series:
        return None
    if isinstance(source, Names):
        return _newest_names(series, source.labels)
    wanted = source.labels if isinstance(source, LabelProduct) else (source.label,)
    # An info series repeated per process says the same thing each time.
    rows = {
        _rank(entry.labels, mapping): tuple(_number(entry.labels.get(label)) for label in wanted) for entry in series
    }
    numbers = [math.prod(row) for row in rows.values()]
    constant = _UNKNOWN if any(math.isnan(number) for number in numbers) else _COMBINE[source.combine](numbers)
    return None if math.isnan(constant) else lambda _values: constant


def _matching(pick: Pick, found: Mapping[str, Sequence[Series]]) -> list[Series]:
    series = found.get(pick.name, ())
    if not pick.where:
        return list(series)
    return [entry for entry in series if all(entry.labels.get(label) == value for label, value in pick.where)]


def _rank(labels: Mapping[str, str], mapping: EngineMapping) -> frozenset[tuple[str, str]]:
    """Return what tells one rank's series from another's: all labels but those of replicas."""
    if mapping.replica_labels.isdisjoint(labels):
        return frozenset(labels.items())
    return frozenset(item for item in labels.items() if item[0] not in mapping.replica_labels)


def _groups(pick: Pick, found: Mapping[str, Sequence[Series]], mapping: EngineMapping) -> Groups:
    series = _matching(pick, found)
    for label in mapping.breakdown_labels:
        totals = [entry for entry in series if not entry.labels.get(label)]
        series = totals or series
    if len(series) == 1:
        return ((series[0].index,),)
    ranks: dict[frozenset[tuple[str, str]], list[int]] = {}
    for entry in series:
        ranks.setdefault(_rank(entry.labels, mapping), []).append(entry.index)
    return tuple(tuple(indices) for indices in ranks.values())


_COMBINE: Mapping[Combine, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "max": max,
    "min": min,
    "mean": lambda numbers: math.fsum(numbers) / len(numbers),
}


def _total(groups: Groups, combine: Combine, scale: float) -> Callable[[Sequence[float]], float]:
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


def _ratio(part: Callable[[Sequence[float]], float], whole: Callable[[Sequence[float]], float]) -> Step:
    def ratio(values: Sequence[float]) -> float:
        divisor = whole(values)
        return part(values) / divisor if divisor > 0.0 else _UNKNOWN

    return ratio


def _newest_names(series: Sequence[Series], labels: Sequence[str]) -> Step | None:
    sets: dict[int, frozenset[str]] = {}
    for entry in series:
        joined = next((entry.labels[label] for label in labels if label in entry.labels), None)
        if joined is not None:
            sets[entry.index] = frozenset(
                name for part in joined.split(",") if 0 < len(name := part.strip()) <= _NAME_LIMIT
            )
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

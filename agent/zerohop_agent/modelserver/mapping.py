"""How one engine's metrics become `Signals`: the vocabulary in which the tables of `engines/` are written.

A mapping is data. Each field of `Signals` has an ordered list of sources; the first source whose series is on the
page is
used, and a field with none of them on the page is unknown. Names are written as the engine registers them (`vllm:...`);
the spelling with `_` for `:` that some exporters print is matched without being listed.

How several series of one name become one value:

1. Series that differ only in a *replica label* (`pid`, SGLang's `tp_rank`) describe the same thing: the largest counts.
2. Where a *breakdown label* (SGLang's `priority`) splits a total, the series without it or with an empty value is the
   total; only when there is none are the parts used.
3. What is left - one series per data-parallel rank, model or stream kind - is combined by the source's `combine`: `sum`
   for requests and tokens, `mean` for shares of the KV cache (so usage times capacity stays the tokens in use),
   `max` for limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Combine", "EngineMapping", "LabelProduct", "LabelValue", "Names", "Pick", "Ratio", "Source", "Total"]

Combine = Literal["sum", "max", "min", "mean"]


@dataclass(frozen=True, slots=True)
class Pick:
    """The series of one metric name whose labels have the given values."""

    name: str
    where: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Total:
    """The values of one name, combined over ranks, plus those of the names in `plus` that are on the page."""

    pick: Pick
    combine: Combine = "sum"
    plus: tuple[Pick, ...] = ()
    #: the value is multiplied by this, e.g. 0.001 for milliseconds
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """Sum of one pick divided by the sum of another; unknown while the divisor is 0."""

    part: Pick
    whole: Pick


@dataclass(frozen=True, slots=True)
class LabelValue:
    """A number that an `_info` series carries as a label."""

    pick: Pick
    label: str
    combine: Combine = "max"


@dataclass(frozen=True, slots=True)
class LabelProduct:
    """The product of two label values of an `_info` series."""

    pick: Pick
    labels: tuple[str, str]
    combine: Combine = "sum"


@dataclass(frozen=True, slots=True)
class Names:
    """Comma-joined names in a label of the series with the largest value (a time of update). `labels` are
    alternatives."""

    pick: Pick
    labels: tuple[str, ...]


Source = Total | Ratio | LabelValue | LabelProduct | Names


@dataclass(frozen=True, slots=True)
class EngineMapping:
    """Everything that is particular to one engine."""

    name: str
    #: a sample name that starts with one of these marks the page as this engine's
    prefixes: tuple[str, ...]
    #: field of `Signals` -> sources in order of preference
    fields: Mapping[str, tuple[Source, ...]]
    replica_labels: frozenset[str] = frozenset({"pid"})
    breakdown_labels: frozenset[str] = frozenset()
    metrics_path: str = "/metrics"
    #: answers 503 when the engine is dead, at no cost to the engine; empty: no path does
    health_path: str = ""
    #: the server may print chosen metrics only, when asked with `name[]` at the path with a slash after it
    narrowable: bool = False
    #: never scraped more often than this, seconds
    floor_interval_s: float = 0.0
    #: fields that a picker cannot do without; their absence is reported once
    required: tuple[str, ...] = ("waiting", "running")
    #: fields that most decisions use
    expected: tuple[str, ...] = field(default=("kv_cache_usage",))
    #: where the names were read, for people
    source: str = ""

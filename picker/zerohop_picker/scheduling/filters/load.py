"""Filters by load and condition: they say where a request *should* go, and most give way rather than leave nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from zerohop_picker.scheduling.filters.compare import OPERATORS, at_most, compare, or_all
from zerohop_picker.scheduling.plugin import Parameter, PluginType, bound
from zerohop_picker.scheduling.request import Request
from zerohop_picker.scheduling.scorers.attribute import attribute_name, attribute_values
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.view import Floats, Mask
from zerohop_process.strict import Fields, Node, boolean, integer, list_of, number, one_of, within

#: utilization-filter's metrics, and what they are on ``Endpoints``.
_METRICS = {
    "active-requests": "active",
    "running-requests": "running",
    "waiting-queue": "waiting",
    "kv-cache-utilization": "kv_cache_usage",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One limit of ``utilization-filter``."""

    metric: str
    max_value: float


def read_condition(node: Node) -> Condition:
    """Read ``metric`` and ``maxValue``. Raises: ConfigError."""
    fields = Fields(node)
    metric = fields.take("metric", one_of(*_METRICS))
    most = 1.0 if metric == "kv-cache-utilization" else 1e12
    limit = fields.take("maxValue", within(number, 0.0, most))
    fields.finish()
    return Condition(metric, limit)


def utilization(
    endpoints: Endpoints,
    _request: Request,
    *,
    conditions: list[Condition],
    fallback_on_empty: bool,
    **_producer: object,
) -> Mask:
    """Keep endpoints whose value of every condition is at most ``maxValue``; waiting and running include picks since.

    An unknown value passes. When none is left and ``fallbackOnEmpty``, keep all.
    """
    mask = np.ones(len(endpoints), dtype=np.bool_)
    for condition in conditions:
        values: Floats = getattr(endpoints, _METRICS[condition.metric])
        mask &= at_most(values, condition.max_value, unknown=True)
    return or_all(mask, fallback_on_empty)


def low_queue(endpoints: Endpoints, _request: Request, *, threshold: int) -> Mask:
    """Keep endpoints with at most ``threshold`` waiting (picks since included), else all. Unknown is dropped."""
    return or_all(at_most(endpoints.waiting, threshold, unknown=False), True)


def slowdown(endpoints: Endpoints, _request: Request, *, max_slowdown: float, fallback_on_empty: bool) -> Mask:
    """Keep endpoints whose GPU runs at 1 / ``maxSlowdown`` of its speed or faster. An unknown slowdown passes."""
    return or_all(at_most(endpoints.slowdown, max_slowdown, unknown=True), fallback_on_empty)


@dataclass(frozen=True, slots=True)
class Rule:
    """``algorithm`` of endpoint-attribute-filter."""

    kind: str
    operator: str = ""
    low: float = 0.0
    high: float = 0.0
    count: int = 0
    higher_is_better: bool = True


def read_rule(node: Node) -> Rule:
    """Read ``algorithm``. Raises: ConfigError."""
    fields = Fields(node)
    kind = fields.take("type", one_of("threshold", "range", "topK", "percentile"))
    inner = Fields(fields.take(kind, lambda n: n))
    fields.finish()
    if kind == "threshold":
        limit = inner.take("value", number)
        rule = Rule(kind, operator=inner.take("operator", one_of(*OPERATORS)), low=limit)
    elif kind == "range":
        rule = Rule(kind, low=inner.take("min", number), high=inner.take("max", number))
        if rule.low > rule.high:
            raise inner.node.error(f"min {rule.low:g} must not be above max {rule.high:g}")
    elif kind == "topK":
        count = inner.take("k", within(integer, 1, 1_000_000))
        rule = Rule(kind, count=count, higher_is_better=inner.take("higherIsBetter", boolean, True))
    else:
        share = inner.take("percentile", within(number, 0, 100))
        rule = Rule(kind, low=share, higher_is_better=inner.take("higherIsBetter", boolean, True))
    inner.finish()
    return rule


def endpoint_attribute(
    endpoints: Endpoints,
    _request: Request,
    *,
    attribute: str,
    algorithm: Rule,
    on_missing: str,
    fallback_on_empty: bool,
) -> Mask:
    """Keep endpoints by one attribute: a threshold, an inclusive range, the best K, or a nearest-rank percentile.

    An endpoint without the attribute passes or fails as ``onMissing`` says and takes no part in a ranking.
    """
    values = attribute_values(endpoints, attribute)
    missing = on_missing == "Pass"
    if algorithm.kind == "threshold":
        mask = compare(values, algorithm.operator, algorithm.low, unknown=missing)
    elif algorithm.kind == "range":
        mask = compare(values, "GreaterThanOrEqual", algorithm.low, unknown=missing)
        mask &= at_most(values, algorithm.high, unknown=missing)
    else:
        mask = _ranked(values, algorithm, missing)
    return or_all(mask, fallback_on_empty)


def _ranked(values: Floats, rule: Rule, missing: bool) -> Mask:
    known = np.flatnonzero(np.isfinite(values))
    mask = np.full(len(values), missing, dtype=np.bool_)
    mask[known] = False
    if not len(known):
        return mask
    signed = values[known] if rule.higher_is_better else -values[known]
    if rule.kind == "topK":
        mask[known[np.argsort(-signed, kind="stable")[: rule.count]]] = True
        return mask
    ordered = np.sort(values[known])
    cutoff = ordered[max(math.ceil(rule.low / 100.0 * len(ordered)), 1) - 1]
    mask[known] = values[known] >= cutoff if rule.higher_is_better else values[known] <= cutoff
    return mask


TYPES: tuple[PluginType, ...] = (
    PluginType(
        "utilization-filter", "filter", bound(utilization), reads=("waiting", "running", "kv_cache_usage"),
        parameters=(
            Parameter("conditions", list_of(read_condition), meaning="metric and maxValue, all must hold"),
            Parameter("fallbackOnEmpty", boolean, False, "keep all when none is left"),
            Parameter("inFlightLoadProducerName", str, "", "the producer to read (there is one)"),
        ),
    ),
    PluginType(
        "low-queue-filter", "filter", bound(low_queue), reads=("waiting",),
        parameters=(Parameter("threshold", within(integer, 0, 1_000_000), 128, "longest queue that passes"),),
    ),
    PluginType(
        "slowdown-filter", "filter", bound(slowdown), reads=("slowdown",),
        parameters=(
            Parameter("maxSlowdown", within(number, 1, 1000), 1.5, "largest slowdown that passes"),
            Parameter("fallbackOnEmpty", boolean, True, "keep all when none is left"),
        ),
    ),
    PluginType(
        "endpoint-attribute-filter", "filter", bound(endpoint_attribute), reads=("attribute",),
        parameters=(
            Parameter("attribute", attribute_name, meaning="a column of the snapshot"),
            Parameter("algorithm", read_rule, meaning="type: threshold, range, topK or percentile"),
            Parameter("onMissing", one_of("Pass", "Fail"), "Pass", "what becomes of an endpoint without it"),
            Parameter("fallbackOnEmpty", boolean, False, "keep all when none is left"),
        ),
    ),
)  # fmt: skip

"""Scorers over any column of the snapshot, and over the GPU's condition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zerohop_picker.scheduling.plugin import Parameter, PluginType, bound
from zerohop_picker.scheduling.request import Request
from zerohop_picker.scheduling.scorers.normalise import clamped, falling, rising
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.view import Floats
from zerohop_process.strict import Fields, Node, did_you_mean, nearest, number, one_of, text

#: Attributes under the names that the field's configurations use, and what they are here.
ALIASES = {
    "num_requests_waiting": "waiting",
    "num_requests_running": "running",
    "kv_cache_usage_perc": "kv_cache_usage",
    "DCGM_FI_DEV_GPU_UTIL": "gpu_utilization",
    "gpu_util": "gpu_utilization",
}
#: The snapshot's measured columns, and the corrected loads under their own names.
ATTRIBUTES = (
    "waiting", "running", "requests", "in_flight", "queued_tokens", "kv_cache_usage", "slowdown", "lora_count",
    "lora_max", "kv_capacity_tokens", "block_size", "max_model_len", "prompt_tokens_rate", "generation_tokens_rate",
    "ttft_mean_s", "itl_mean_s", "scrape_interval_s", "gpu_utilization", "gpu_memory", "prompt_tokens",
    "generation_tokens", "prefix_queries", "prefix_hits", "preemptions", "steps", "age_s",
)  # fmt: skip
_CORRECTED = frozenset(("waiting", "running", "requests", "in_flight", "queued_tokens"))


def attribute_name(node: Node) -> str:
    """Read the name of an attribute. Raises: ConfigError for one that the snapshot does not have."""
    name = text(node)
    name = ALIASES.get(name, name)
    if name not in ATTRIBUTES:
        guess = nearest(name, ATTRIBUTES)
        hint = f"; did you mean {guess!r}?" if guess else did_you_mean("", ATTRIBUTES)
        raise node.error(f"the snapshot has no attribute {name!r}{hint}")
    return name


def attribute_values(endpoints: Endpoints, name: str) -> Floats:
    """Return an attribute of each candidate; waiting and running include the picks since. NaN where unknown."""
    if name in _CORRECTED:
        values: Floats = getattr(endpoints, name)
        return values
    return endpoints.age_s() if name == "age_s" else endpoints.column(name)


@dataclass(frozen=True, slots=True)
class Linear:
    """A direction and the range it is measured over; ``low`` is NaN for the candidates' own range."""

    lower_is_better: bool
    low: float = np.nan
    high: float = np.nan


def read_linear(node: Node) -> Linear:
    """Read ``algorithm``. Raises: ConfigError."""
    fields = Fields(node)
    kind = fields.take("type", one_of("linear_lower_is_better", "linear_higher_is_better"))
    low = high = np.nan
    if fields.has("normalization"):
        inner = Fields(fields.take("normalization", lambda n: n))
        adaptive = inner.has("adaptiveRange") or "adaptiveRange" in inner.node.members()
        if inner.has("fixedRange"):
            if adaptive:
                raise inner.node.error("set one of adaptiveRange and fixedRange, not both")
            limits = Fields(inner.take("fixedRange", lambda n: n))
            low, high = limits.take("min", number), limits.take("max", number)
            limits.finish()
            if not low < high:
                raise limits.node.error(f"min {low:g} must be less than max {high:g}")
        inner.finish()
    fields.finish()
    return Linear(kind == "linear_lower_is_better", low, high)


def endpoint_attribute(endpoints: Endpoints, _request: Request, *, attribute_key: str, algorithm: Linear) -> Floats:
    """Return (v - min) / (max - min), or 1 minus that when lower is better; v = the attribute's value.

    min and max are those of the candidates (all equal: 1), or a fixed range, clamped. Unknown where v is.
    """
    values = attribute_values(endpoints, attribute_key)
    if np.isnan(algorithm.low):
        return falling(values) if algorithm.lower_is_better else rising(values)
    scores = clamped((values - algorithm.low) / (algorithm.high - algorithm.low))
    return 1.0 - scores if algorithm.lower_is_better else scores


def gpu_headroom(endpoints: Endpoints, _request: Request) -> Floats:
    """Return (1 - u) / slowdown, u = mean utilisation of the endpoint's GPUs, slowdown >= 1.

    All equal: all the same value. Unknown where ``gpu_utilization`` is; an unknown slowdown counts as 1.
    """
    return endpoints.remember("GPU headroom", _headroom)


def _headroom(endpoints: Endpoints) -> Floats:
    return (1.0 - endpoints.column("gpu_utilization").clip(0.0, 1.0)) / np.fmax(endpoints.slowdown, 1.0)


TYPES: tuple[PluginType, ...] = (
    PluginType(
        "endpoint-attribute-scorer", "scorer", bound(endpoint_attribute), reads=("attributeKey",),
        parameters=(
            Parameter("attributeKey", attribute_name, meaning="a column of the snapshot"),
            Parameter("algorithm", read_linear, meaning="type: linear_lower_is_better or linear_higher_is_better"),
        ),
    ),
    PluginType("gpu-headroom-scorer", "scorer", bound(gpu_headroom), reads=("gpu_utilization",)),
)  # fmt: skip

"""Filters by what may be chosen at all: the gateway's subset, a test's choice, the endpoint's health."""

from __future__ import annotations

import numpy as np

from zerohop_picker.scheduling.filters.compare import or_all
from zerohop_picker.scheduling.plugin import Parameter, PluginType, bound
from zerohop_picker.scheduling.request import Request
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.view import Mask
from zerohop_process.strict import boolean, list_of, one_of
from zerohop_snapshot import Flag

TEST_HEADER = "test-epp-endpoint-selection"
_STATES = {
    "drain": Flag.DRAIN, "unhealthy": Flag.UNHEALTHY, "stale": Flag.STALE, "sleeping": Flag.SLEEPING,
    "overloaded": Flag.OVERLOADED, "stuck": Flag.STUCK, "slowed": Flag.SLOWED,
}  # fmt: skip


def _named(endpoints: Endpoints, entries: tuple[str, ...]) -> Mask:
    mask: Mask = np.isin(endpoints.rows, endpoints.view.names.rows_named(entries))
    return mask


def subset(endpoints: Endpoints, request: Request) -> Mask:
    """Keep endpoints in the gateway's subset hint (``ip:port``, or a bare IP for all its ports); all without a hint.

    The scheduler applies the hint before any profile; naming this filter changes nothing.
    """
    if request.llm.subset is None:
        return np.ones(len(endpoints), dtype=np.bool_)
    return _named(endpoints, request.llm.subset)


def header_based_testing(endpoints: Endpoints, request: Request) -> Mask:
    """Keep the endpoints that header test-epp-endpoint-selection names (comma-separated); none without the header."""
    value = request.headers.get(TEST_HEADER, "")
    return _named(endpoints, tuple(entry.strip() for entry in value.split(",") if entry.strip()))


def health(endpoints: Endpoints, _request: Request, *, drop: list[str], fallback_on_empty: bool) -> Mask:
    """Drop endpoints in one of the states ``drop``.

    Drained, unhealthy, stale, sleeping and stuck ones are no candidates in the first place while any other is left;
    this filter can add ``overloaded`` and ``slowed`` to them. A state is never unknown: the agent latches it.
    """
    bits = 0
    for state in drop:
        bits |= int(_STATES[state])
    flags = endpoints.raw("flags")
    return or_all((flags & np.uint32(bits)) == 0, fallback_on_empty)


TYPES: tuple[PluginType, ...] = (
    PluginType("subset-filter", "filter", bound(subset), structural=True),
    PluginType(
        "header-based-testing-filter", "filter", bound(header_based_testing), structural=True,
        note="for conformance tests",
    ),
    PluginType(
        "health-filter", "filter", bound(health),
        parameters=(
            Parameter(
                "drop", list_of(one_of(*_STATES)), ["drain", "unhealthy", "stale", "sleeping", "stuck"],
                "states that do not pass",
            ),
            Parameter("fallbackOnEmpty", boolean, True, "keep all when none is left"),
        ),
    ),
)  # fmt: skip

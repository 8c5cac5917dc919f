"""Scorers by label: the one a request's header asks for, and the context length that an endpoint is meant for."""

from __future__ import annotations

import math

import numpy as np

from zerohop_picker.scheduling.plugin import Parameter, PluginType, bound
from zerohop_picker.scheduling.request import Request
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.view import Floats, Mask
from zerohop_process.strict import boolean, text

CONTEXT_LABEL = "llm-d.ai/context-length-range"


def header_label_affinity(endpoints: Endpoints, request: Request, *, header_name: str, label_key: str) -> Floats:
    """Return 1 where the value of label ``labelKey`` equals that of header ``headerName``, else 0.

    All equal: all the same value; 0 for all without the header. Never unknown: a missing label equals nothing.
    """
    wanted = request.headers.get(header_name.lower())
    if wanted is None:
        return np.zeros(len(endpoints))
    return np.equal(endpoints.label(label_key), wanted).astype(np.float64)


class ContextLength:
    """Prefers the endpoint whose range of context lengths fits the prompt most tightly."""

    def __init__(self, label: str, enable_filtering: bool) -> None:
        """Read ranges ``min-max`` (tokens) from ``label``."""
        self._label = label
        self.filtering = enable_filtering
        self._ranges: dict[object, tuple[float, float]] = {}

    def __call__(self, endpoints: Endpoints, request: Request) -> Floats:
        """Return, for a prompt of t tokens and a range of width w = max - min:

        in range: 0.3 + 0.7 * (0.7 / (1 + w / 10000) + 0.3 * (max - t) / w); out of range by d: 0.3 / (1 + d / 1000);
        no readable label: 0.5. All equal: all the same value. Never unknown.
        """
        low, high = self._bounds(endpoints)
        tokens = float(request.prompt_tokens)
        width = np.maximum(high - low, 1.0)
        inside = (low <= tokens) & (tokens <= high)
        fits = 0.3 + 0.7 * (0.7 / (1.0 + width / 10_000.0) + 0.3 * np.clip((high - tokens) / width, 0.0, 1.0))
        distance = np.maximum(np.maximum(low - tokens, tokens - high), 0.0)
        scores = np.where(inside, fits, 0.3 / (1.0 + distance / 1000.0))
        return np.where(np.isnan(low), 0.5, scores)

    def keep(self, endpoints: Endpoints, request: Request) -> Mask:
        """Return which candidates' range holds the prompt or that have no range."""
        low, high = self._bounds(endpoints)
        tokens = float(request.prompt_tokens)
        return np.isnan(low) | ((low <= tokens) & (tokens <= high))

    def _bounds(self, endpoints: Endpoints) -> tuple[Floats, Floats]:
        bounds = [self._range(value) for value in endpoints.label(self._label)]
        pairs = np.array(bounds, dtype=np.float64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _range(self, value: object) -> tuple[float, float]:
        found = self._ranges.get(value)
        if found is None:
            found = self._ranges[value] = _parsed(value)
        return found


def _parsed(value: object) -> tuple[float, float]:
    low, dash, high = str(value).partition("-") if isinstance(value, str) else ("", "", "")
    if dash and low.strip().isdecimal() and high.strip().isdecimal() and int(low) <= int(high):
        return float(low), float(high)
    return math.nan, math.nan


TYPES: tuple[PluginType, ...] = (
    PluginType(
        "header-label-affinity-scorer", "scorer", bound(header_label_affinity), reads=("labels",),
        parameters=(
            Parameter("headerName", text, meaning="request header"),
            Parameter("labelKey", text, meaning="endpoint label"),
        ),
    ),
    PluginType(
        "context-length-aware", "scorer", ContextLength, reads=("labels",),
        parameters=(
            Parameter("label", text, CONTEXT_LABEL, "label that holds min-max"),
            Parameter("enableFiltering", boolean, False, "also drop endpoints whose range does not hold the prompt"),
        ),
    ),
)  # fmt: skip

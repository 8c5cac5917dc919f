"""The `endpoint-load-metrics` response header (ORCA), by which a server reports its load beside an answer.

Three forms exist: `TEXT name=value, named_metrics.name=value`, `JSON {...}`, and `BIN` with a protobuf in base64,
which no
engine sends. A server adds the header only when a request has asked for it with `endpoint-load-metrics-format: TEXT` or
`JSON`; vLLM (0.12 and later) and Triton understand that.

Source: envoyproxy/envoy `source/common/orca/orca_parser.cc`; vLLM `vllm/entrypoints/openai/orca_metrics.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping

__all__ = ["ORCA_REQUEST_HEADER", "ORCA_RESPONSE_HEADER", "parse_orca"]

ORCA_REQUEST_HEADER = "endpoint-load-metrics-format"
ORCA_RESPONSE_HEADER = "endpoint-load-metrics"
_LIMIT_BYTES = 16 * 1024


def parse_orca(value: str) -> Mapping[str, float]:
    """Return the finite numbers of a header value by name; those of `named_metrics` without that word in front.

    A part that is malformed is left out; a form that is not understood gives nothing. Never raises.
    """
    kind, _, rest = value.strip().partition(" ")
    if len(rest) > _LIMIT_BYTES:
        return {}
    if kind == "TEXT":
        pairs = (part.partition("=") for part in rest.split(","))
        return _finite((name.strip(), number.strip()) for name, equals, number in pairs if equals)
    if kind == "JSON":
        try:
            report = json.loads(rest)
        except (ValueError, RecursionError):
            return {}
        return _finite(_flat(report)) if isinstance(report, dict) else {}
    return {}


def _flat(report: dict[str, object]) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for name, number in report.items():
        if isinstance(number, dict):
            pairs += [(f"{name}.{inner}", value) for inner, value in number.items()]
        else:
            pairs.append((name, number))
    return pairs


def _finite(pairs: Iterable[tuple[str, object]]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, text in pairs:
        if isinstance(text, bool) or not isinstance(text, str | int | float) or "_" in str(text):
            continue
        try:
            number = float(text)
        except (ValueError, OverflowError):
            continue
        if math.isfinite(number) and name:
            numbers[name.removeprefix("named_metrics.")] = number
    return numbers

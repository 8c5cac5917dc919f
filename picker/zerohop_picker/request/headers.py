"""The header names that mean something to the picker: one place, new and legacy names side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import getrandbits
from typing import Any

DESTINATION = "x-gateway-destination-endpoint"
DESTINATION_SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
#: Metadata namespaces of the endpoint picker protocol 1.0.
NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"

REQUEST_ID = "x-request-id"
DROPPED_REASON = "x-llm-d-request-dropped-reason"

# new name, legacy name
FAIRNESS_ID = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
TARGET_MODEL = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
TTFT_SLO = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_SLO = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
SESSION_TOKEN = "x-session-token"  # noqa: S105 - a header's name
SESSION_ID = "x-session-id"

# Conformance runs only (`--conformance-headers`).
TEST_SELECTION = "test-epp-endpoint-selection"
TEST_SERVED = "x-conformance-test-served-endpoint"
TEST_ECHO = "x-echo-set-header"

#: Names that only the picker may write towards the model server; a client's own are removed. The destination itself is
#: not here: it is always overwritten.
RESERVED = frozenset((DESTINATION_SERVED, SUBSET, DESTINATION + "-fallbacks", DESTINATION + "-scores", DROPPED_REASON))
#: Names that make a request more than its path and body; most requests carry none of them.
STEERING = frozenset(
    (*FAIRNESS_ID, *OBJECTIVE, *TARGET_MODEL, *TTFT_SLO, *TPOT_SLO, SESSION_TOKEN, SESSION_ID, "content-encoding")
)


def read_headers(values: Iterable[Any]) -> dict[str, str]:
    """Lower-case names to values of `HeaderValue` messages.

    Envoy fills `raw_value` and leaves `value` empty (envoyproxy/envoy#31555); others do the reverse. Bytes that are no
    UTF-8 are read as latin-1. Repeated headers are joined by a comma, as RFC 9110 5.3 has it.
    """
    headers: dict[str, str] = {}
    for item in values:
        key, value = header_pair(item)
        headers[key] = f"{headers[key]},{value}" if key in headers else value
    return headers


def header_pair(item: Any) -> tuple[str, str]:
    """Lower-case name and value of one `HeaderValue` message."""
    raw = item.raw_value
    if not raw:
        return item.key.lower(), item.value
    try:
        return item.key.lower(), raw.decode()
    except UnicodeDecodeError:
        return item.key.lower(), raw.decode("latin-1")


def either(headers: Mapping[str, str], names: tuple[str, str]) -> str | None:
    """The value under the new name, else under the legacy one, else None; an empty value is none."""
    return headers.get(names[0]) or headers.get(names[1]) or None


def milliseconds(headers: Mapping[str, str], names: tuple[str, str]) -> float | None:
    """A positive number of milliseconds, or None when absent or not one."""
    text = either(headers, names)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def new_request_id() -> str:
    """A random UUID (version 4). Ids only tell requests apart, so the fast generator is enough: 1.1 us against 1.9."""
    text = f"{getrandbits(128):032x}"
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"

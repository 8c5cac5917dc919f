"""The header names that mean something to the picker: one place, new and legacy names side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from random import getrandbits
from typing import Any

from google.protobuf.message import DecodeError

from zerohop_picker._pb import extproc_pb2 as pb

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


class WireHeaders(Mapping[str, str]):
    """Request headers still in wire form: a serialised HeaderMap of Envoy's shape (lower-case names and raw values).

    Reading a dozen headers into a dict costs 10 us and routing looks at five, so these are searched for instead: a name
    stands between the tag and length before it and the tag of `raw_value` after it, and no name or value that HTTP
    allows contains these control bytes. The dict is made when anything else is asked for. Names are compared in lower
    case; lengths of names looked for are below 65, so the bytes that state them are no letters.
    """

    __slots__ = ("_block", "_lower", "_values", "plain")

    def __init__(self, block: bytes):
        self._block = block
        self._lower = lower = block.lower()
        #: Whether there is surely no name in STEERING or RESERVED among them: each contains one of these parts.
        self.plain = not (
            b"x-gateway-" in lower
            or b"x-llm-d-" in lower
            or b"x-se" in lower
            or b"x-slo-" in lower
            or b"content-e" in lower
        )
        self._values: dict[str, str] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """As of any mapping; fast for the names that routing needs."""
        pattern = _PATTERNS.get(name)
        if pattern is None or self._values is not None:
            return self._all().get(name, default)
        block = self._block
        at = self._lower.find(pattern)
        if at < 0:
            return default
        start = at + len(pattern) + 1
        size = block[start - 1]
        if size > 0x7F:
            return self._all().get(name, default)
        try:
            return block[start : start + size].decode()
        except UnicodeDecodeError:
            return self._all().get(name, default)

    def _all(self) -> dict[str, str]:
        if self._values is None:
            try:
                self._values = read_headers(pb.HeaderMap.FromString(self._block).headers)
            except DecodeError:
                self._values = {}
        return self._values

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def _pattern(name: str) -> bytes:
    return b"\x0a%c%s\x1a" % (len(name), name.encode())


_PATTERNS = {name: _pattern(name) for name in (":method", ":path", "content-type", "content-length", REQUEST_ID)}
#: What every request's headers contain when they are of the shape that WireHeaders reads.
METHOD_PATTERN = _PATTERNS[":method"]


def are_plain(headers: Mapping[str, str]) -> bool:
    """Whether there is no name in STEERING or RESERVED among them; a False may be wrong."""
    if isinstance(headers, WireHeaders):
        return headers.plain
    return STEERING.isdisjoint(headers) and RESERVED.isdisjoint(headers)


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
    return item.key.lower(), text_of(raw) if raw else item.value


def text_of(raw: bytes) -> str:
    """A header value as text: UTF-8, or latin-1 where it is not."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


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

"""What the native front asks of libnghttp2, and what it grants a peer."""

from __future__ import annotations

from ngh2 import Configuration, ErrorCode, Setting

from zerohop_picker.fronts.limits import KIB, MIB, SECOND_NS, Limits

READ_BYTES = 256 * KIB
STREAM_WINDOW_BYTES = MIB
CONNECTION_WINDOW_BYTES = 16 * MIB
# Envoy resets almost every stream, because it needs no more replies. libnghttp2's defence against rapid resets closes
# the connection after 1,000 of them and a trickle of 33/s (CVE-2023-44487), which from a gateway is a busy second. A
# reset here costs what a request costs and frees its stream, so the cap on streams is the bound and this one is wide.
RESETS = (1_000_000, 1_000_000)
GLITCHES = (1_000_000, 100_000)


def configuration(limits: Limits) -> Configuration:
    """Return libnghttp2's own limits."""
    return Configuration(
        stream_reset_rate_limit=RESETS,
        glitch_rate_limit=GLITCHES,
        max_inbound_header_list_size=limits.header_list_bytes,
        max_inbound_header_count=limits.header_count,
        max_outbound_ack=1_000,
    )


def settings(limits: Limits) -> dict[Setting, int]:
    """Return the SETTINGS that greet a peer."""
    return {
        Setting.MAX_CONCURRENT_STREAMS: limits.concurrent_streams,
        Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
        Setting.MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
        Setting.ENABLE_PUSH: 0,
    }


def name_of(code: int) -> str:
    """Return an error code in words; peers may send any number."""
    try:
        return ErrorCode(code).name.lower()
    except ValueError:
        return "unknown error code"


class ControlBudget:
    """How many PING and SETTINGS frames a peer may still send: a burst, refilled at a rate."""

    __slots__ = ("_burst", "_ns", "_rate", "_tokens")

    def __init__(self, limits: Limits, now_ns: int) -> None:
        self._burst = self._tokens = float(limits.control_burst)
        self._rate = limits.control_rate
        self._ns = now_ns

    def take(self, now_ns: int) -> bool:
        """Count one frame; return whether it was within the budget."""
        earned = (now_ns - self._ns) * self._rate / SECOND_NS
        self._ns = now_ns
        self._tokens = min(self._tokens + earned, self._burst) - 1
        return self._tokens >= 0

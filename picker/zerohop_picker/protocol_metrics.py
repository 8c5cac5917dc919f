"""What the protocol core counts, as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zerohop_picker._pb import extproc_pb2 as pb
from zerohop_picker.counting import LabelValues
from zerohop_picker.metrics import Metrics
from zerohop_picker.protocol.settings import ProtocolCounters

_PLAIN = {
    "extproc_streams": ("streams", "ext-proc streams begun."),
    "picks": ("picks", "Requests that were given an endpoint."),
    "header_only_picks": ("header_only_picks", "Picks made from headers alone."),
    "deadline_fallbacks": ("deadline_fallbacks", "Picks by the fallback policy because the deadline had passed."),
    "scheduler_failures": ("scheduler_failures", "Decisions that raised; the fallback policy decided instead."),
    "repeated_body_ends": ("repeated_ends", "Second ends of a request body, ignored."),
    "model_rewrites": ("rewrites", "Requests whose model name was rewritten in the body."),
    "model_rewrites_skipped": ("rewrites_skipped", "Rewrites that found no body, or no model in it, to rewrite."),
}


def export_counters(counters: ProtocolCounters, metrics: Metrics) -> None:
    """Register every counter of the core."""
    for name, (attribute, text) in _PLAIN.items():
        metrics.counted(name, text, (), _reader(counters, attribute))
    metrics.counted(
        "immediate_responses", "Requests answered by the picker itself, by status and reason.", ("status", "reason"),
        lambda: (((str(status), why), count) for (status, why), count in list(counters.refusals.items())),
    )  # fmt: skip
    metrics.counted(
        "request_body_mode_streams", "ext-proc streams by the gateway's request body mode.", ("mode",),
        lambda: (((_mode(mode),), count) for mode, count in list(counters.modes.items())),
    )  # fmt: skip
    metrics.counted(
        "served", "Responses by the endpoint asked for and the one that served, as the gateway reports them.",
        ("asked", "served"), lambda: list(counters.served.items()),
    )  # fmt: skip


def _reader(counters: ProtocolCounters, attribute: str) -> Callable[[], Iterable[tuple[LabelValues, float]]]:
    return lambda: (((), getattr(counters, attribute)),)


def _mode(mode: int) -> str:
    try:
        return pb.BodySendMode.Name(mode)
    except (AttributeError, ValueError):
        return str(mode)

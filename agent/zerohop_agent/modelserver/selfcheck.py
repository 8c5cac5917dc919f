"""What is worth telling a person once about how an endpoint is read: settings that cannot work, metrics that are
missing."""

from __future__ import annotations

from collections.abc import Iterator

from zerohop_agent.modelserver.mapping import EngineMapping
from zerohop_agent.signals import Signals

__all__ = ["advice_on_failure", "findings"]

#: a value is at least this many intervals old before the next one comes, with jitter and one slow answer
_BOUND_INTERVALS = 1.2


def findings(
    mapping: EngineMapping, signals: Signals, *, interval_ns: int, asked_ns: int, stale_after_ns: int | None
) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with a first good reading."""
    missing = [name for name in mapping.required if getattr(signals, name) is None]
    if missing:
        names = " and no ".join(missing)
        yield (
            f"the page has no {names}: {mapping.name} prints them under another name, has them switched off, or has "
            "not worked yet; decisions for this endpoint go by what is left"
        )
    wanted = [name for name in mapping.expected if getattr(signals, name) is None]
    if wanted:
        yield f"the page has no {', '.join(wanted)}"
    if stale_after_ns is not None and stale_after_ns < interval_ns * _BOUND_INTERVALS:
        yield (
            f"values count as stale after {stale_after_ns / 1e6:g} ms but are read every {interval_ns / 1e6:g} ms: "
            "raise the bound or shorten the interval"
        )
    if interval_ns > asked_ns:
        yield (
            f"read every {interval_ns / 1e6:g} ms instead of {asked_ns / 1e6:g} ms to spare the server; "
            "set scrape_interval on the endpoint to insist"
        )


def advice_on_failure(path: str, status: int | None, body_start: bytes) -> str:
    """Return what to try when `path` answered wrongly; empty when nothing is known."""
    if status == 404:
        return "SGLang needs --enable-metrics; trtllm-serve has its page at /prometheus/metrics"
    if status == 501:
        return "llama.cpp needs --metrics"
    if status in (401, 403):
        return "the page asks for credentials"
    if status == 200 and body_start.lstrip()[:1] in (b"[", b"{") and path == "/metrics":
        return "trtllm-serve answers JSON here; its page is at /prometheus/metrics (engine: trtllm)"
    return ""

"""How each item of the protocol is judged: pure functions of `Facts`, or makers of such."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from zerohop_agent.signals import Signals
from zerohop_console.conformance.model_server.facts import Facts, LoadFacts, Sample
from zerohop_console.conformance.report import Verdict
from zerohop_snapshot.layout import UnhealthyReason

Found = tuple[Verdict, str]
Check = Callable[[Facts], Found]

#: a page that takes longer at rest is read less often than every 200 ms
_QUICK_S = 0.05
_SETTLE_S = 5.0


def _passed(condition: bool, found: str) -> Found:
    return (Verdict.PASS if condition else Verdict.FAIL), found


def _skip(why: str) -> Found:
    return Verdict.SKIP, why


# The page.


def answers(facts: Facts) -> Found:
    """Judge the status of the metrics path."""
    if facts.status is None:
        return Verdict.FAIL, facts.error.detail if facts.error else "no answer"
    return _passed(facts.status == 200, f"GET {facts.path} answers {facts.status}")


def is_metrics(facts: Facts) -> Found:
    """Judge whether it is a whole page of metrics."""
    if facts.status != 200:
        return _skip("no page")
    if facts.error is not None and facts.signals is None and not _engine_unknown(facts):
        return Verdict.FAIL, facts.error.detail
    return Verdict.PASS, f"a whole page of {facts.size_bytes} bytes"


def engine(facts: Facts) -> Found:
    """Judge whose page it is."""
    if facts.status != 200:
        return _skip("no page")
    if facts.mapping is None and not _engine_unknown(facts):
        return _skip("no page of metrics")
    if facts.mapping is None:
        return Verdict.FAIL, facts.error.detail if facts.error else "no engine recognised"
    asked = f", as named with --engine {facts.asked_engine}" if facts.asked_engine else ", found from the page"
    return Verdict.PASS, facts.mapping.name + asked


def _engine_unknown(facts: Facts) -> bool:
    return facts.error is not None and facts.error.reason is UnhealthyReason.ENGINE_UNKNOWN


def content_type(facts: Facts) -> Found:
    """Judge the Content-Type."""
    if facts.status != 200:
        return _skip("no page")
    fine = facts.content_type.startswith(("text/plain", "application/openmetrics-text"))
    return _passed(fine, facts.content_type or "no Content-Type")


def keep_alive(facts: Facts) -> Found:
    """Judge how many connections several readings took."""
    if facts.connections is None:
        return _skip("no page")
    readings = len(facts.times_s)
    return _passed(facts.connections == 1, f"{readings} readings took {facts.connections} connection(s)")


def quick(facts: Facts) -> Found:
    """Judge how long a reading takes at rest."""
    if not facts.times_s:
        return _skip("no page")
    median = statistics.median(facts.times_s)
    return _passed(median <= _QUICK_S, f"{median * 1e3:.1f} ms (median of {len(facts.times_s)})")


# Signals on it.


def signal(*fields: str) -> Check:
    """Return the check that these fields have values, at rest or as soon as there was a request."""

    def check(facts: Facts) -> Found:
        signals = facts.signals
        if signals is None:
            return _skip("no page of a known engine")
        missing = [field for field in fields if getattr(signals, field) is None]
        if missing:
            used = facts.load.samples[-1].signals if facts.load and facts.load.samples else None
            if used is not None and all(getattr(used, field) is not None for field in missing):
                return Verdict.PASS, "appears with the first request"
            return Verdict.FAIL, f"no {' and no '.join(missing)} on the page, or its value makes no sense"
        return Verdict.PASS, ", ".join(f"{field} {getattr(signals, field):g}" for field in fields)

    return check


def capacity(facts: Facts) -> Found:
    """Judge whether the size of the KV cache is told."""
    signals = facts.signals
    if signals is None:
        return _skip("no page of a known engine")
    if signals.kv_capacity_tokens is not None:
        return Verdict.PASS, f"{signals.kv_capacity_tokens:g} tokens"
    if signals.num_blocks is not None and signals.block_size is not None:
        return Verdict.PASS, f"{signals.num_blocks} blocks of {signals.block_size} tokens"
    return Verdict.FAIL, "neither a size in tokens nor a number of blocks"


def flag(field: str) -> Check:
    """Return the check of a field that may as well be absent."""

    def check(facts: Facts) -> Found:
        if facts.signals is None:
            return _skip("no page of a known engine")
        value = getattr(facts.signals, field)
        return (Verdict.SKIP, "not on the page") if value is None else (Verdict.PASS, f"{field} {value}")

    return check


# Beside the page.


def models(facts: Facts) -> Found:
    """Judge the list of served models."""
    if facts.models is None:
        return Verdict.FAIL, facts.models_found
    return _passed(bool(facts.models.names), ", ".join(facts.models.names) or "an empty list")


def context(facts: Facts) -> Found:
    """Judge whether the longest context is told."""
    length = facts.signals.max_model_len if facts.signals is not None else None
    source = "on the page"
    if length is None and facts.models is not None:
        length, source = facts.models.max_model_len, "in /v1/models"
    return _passed(length is not None, f"{length} tokens, {source}" if length is not None else "nowhere")


def health(facts: Facts) -> Found:
    """Judge the health path."""
    status = facts.health_status
    return _passed(status == 200, f"GET /health answers {status}" if status is not None else "no answer")


# Adapters.


def lora(fields: Sequence[str], *, under_load: bool = False) -> Check:
    """Return the check that these fields of adapters have values, where adapters are served."""

    def check(facts: Facts) -> Found:
        if not facts.adapters:
            return _skip("no adapter is served")
        seen = [sample.signals for sample in facts.load.samples] if facts.load else []
        if facts.signals is not None and not under_load:
            seen.append(facts.signals)
        for signals in seen:
            if all(getattr(signals, field) is not None for field in fields):
                return Verdict.PASS, ", ".join(_shown(signals, field) for field in fields)
        if facts.load is None:
            return _skip("not on the page of a server that has served no adapter yet; run with --load")
        return Verdict.FAIL, f"no {' and no '.join(fields)}, even while adapters were in use"

    return check


def _shown(signals: Signals, field: str) -> str:
    value = getattr(signals, field)
    return f"{field} {', '.join(sorted(value)) or 'none'}" if isinstance(value, frozenset) else f"{field} {value:g}"


def lora_names(facts: Facts) -> Found:
    """Judge whether the page names adapters as requests do."""
    load = facts.load
    if not facts.adapters or load is None:
        return _skip("no adapter is served" if not facts.adapters else "needs --load")
    seen = {name for sample in load.samples for name in (sample.signals.lora_running or ())}
    seen |= {name for sample in load.samples for name in (sample.signals.lora_waiting or ())}
    asked = set(load.adapters)
    return _passed(
        asked <= seen, f"requests named {', '.join(sorted(asked))}; the page {', '.join(sorted(seen)) or 'none'}"
    )


def lora_goes(facts: Facts) -> Found:
    """Judge whether adapters without requests leave the page."""
    load = facts.load
    if not facts.adapters or load is None or not load.after:
        return _skip("no adapter is served" if not facts.adapters else "needs --load")
    last = load.after[-1].signals.lora_running
    if last is None:
        return _skip("the page names no adapters")
    return _passed(not last, f"{', '.join(sorted(last)) or 'none'} after the last answer")


# Under load.


def under_load(check: Callable[[Facts, LoadFacts], Found]) -> Check:
    """Return a check that is skipped when there was no load."""

    def guarded(facts: Facts) -> Found:
        if facts.load is None:
            return _skip("needs --load")
        if not facts.load.samples:
            return _skip("the page could not be read under load")
        return check(facts, facts.load)

    return guarded


def serves(_facts: Facts, load: LoadFacts) -> Found:
    """Judge whether completions were answered."""
    found = f"{load.answered} of {load.concurrency} requests answered"
    return _passed(load.answered == load.concurrency, f"{found}; {load.failures[0]}" if load.failures else found)


def busy_seen(_facts: Facts, load: LoadFacts) -> Found:
    """Judge whether the load was seen at all."""
    seen = [busy for sample in load.samples if (busy := _busy(sample)) is not None]
    if not seen:
        return Verdict.FAIL, "neither waiting nor running was on the page"
    return _passed(max(seen) >= 1, f"waiting + running reached {max(seen):g} of {load.concurrency} sent")


def all_seen(_facts: Facts, load: LoadFacts) -> Found:
    """Judge whether the load was seen in its size."""
    top = max((busy for sample in load.samples if (busy := _busy(sample)) is not None), default=0.0)
    return _passed(top >= 0.75 * load.concurrency, f"waiting + running reached {top:g} of {load.concurrency} sent")


def _busy(sample: Sample) -> float | None:
    waiting, running = sample.signals.waiting, sample.signals.running
    if waiting is None and running is None:
        return None
    return (waiting or 0.0) + (running or 0.0)


def kv_moves(facts: Facts, load: LoadFacts) -> Found:
    """Judge whether the KV use rose."""
    seen = [usage for sample in load.samples if (usage := sample.signals.kv_cache_usage) is not None]
    if not seen:
        return _skip("the page has no KV cache usage")
    rest = facts.signals.kv_cache_usage if facts.signals is not None else None
    return _passed(max(seen) > (rest or 0.0), f"{rest or 0:.4f} at rest, up to {max(seen):.4f} under load")


def counter_moves(field: str, least: Callable[[LoadFacts], float]) -> Callable[[Facts, LoadFacts], Found]:
    """Return the check that a counter rose by at least so much."""

    def check(facts: Facts, load: LoadFacts) -> Found:
        end = getattr((load.after or load.samples)[-1].signals, field)
        if end is None:
            return _skip("not on the page")
        start = getattr(facts.signals, field) if facts.signals is not None else None
        moved = end - (start or 0.0)
        return _passed(moved >= max(1.0, least(load)), f"{field} rose by {moved:g}")

    return check


def settles(_facts: Facts, load: LoadFacts) -> Found:
    """Judge whether the gauges return to 0 when all is answered."""
    return _settled(load.after, "the last answer")


def settles_after_abort(_facts: Facts, load: LoadFacts) -> Found:
    """Judge whether they do when clients hang up."""
    if not load.aborted:
        return _skip("no request could be broken off")
    return _settled(load.after_abort, f"{load.aborted} requests were broken off")


def _settled(samples: Sequence[Sample], event: str) -> Found:
    for sample in samples:
        if _busy(sample) == 0:
            return Verdict.PASS, f"idle {sample.at_s:.2f} s after {event}"
    busy = _busy(samples[-1]) if samples else None
    return Verdict.FAIL, f"still {busy if busy is None else f'{busy:g}'} requests {_SETTLE_S:g} s after {event}"


def readable(_facts: Facts, load: LoadFacts) -> Found:
    """Judge how long a reading takes under load."""
    median = statistics.median(sample.took_s for sample in load.samples)
    return _passed(median <= 0.25, f"{median * 1e3:.1f} ms (median of {len(load.samples)})")


def orca(_facts: Facts, load: LoadFacts) -> Found:
    """Judge the load report beside an answer."""
    return _skip("no endpoint-load-metrics header") if load.orca is None else (Verdict.PASS, load.orca)

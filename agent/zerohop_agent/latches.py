"""The derived bits of an endpoint, decided at write time so that a pick tests one bit.

| flag | set while | cleared |
|---|---|---|
| drain | its source says so, or one of its GPUs is lost or broken | when that ends |
| unhealthy | nothing answers at its address, or it was never read | by the first good reading |
| stale | its load values are older than the bound | by the next reading |
| sleeping | the engine says that it sleeps | when it says that it is awake |
| stuck | requests run or wait, and no token or step counter moved for the bound | by the next move, or when empty |
| overloaded | its queue or its KV cache is past a bound | below the bound |
| slowed | a GPU runs below its clock for heat or power | when it runs free |
| plugin | the load values came out of the engine's own cell | when the scrape is newer |

A stuck endpoint is put on trial from time to time. The gauges of an engine whose running requests were all aborted stay
high until new work comes (vllm#29928): avoided for its gauges, the endpoint would never be seen to be fine. On trial,
for three readings, the flag is off and its load counts as empty; if nothing comes of it, the next trial is twice as far
away. A hung engine costs a few requests that way, and a healthy one is back after half a minute.

A server that answers, but with a page that says nothing (404, HTML, an unknown engine), is not unhealthy: it may well
serve. Its load is unknown and goes stale, and the reason says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from zerohop_agent.rows import EndpointRow, Stuck
from zerohop_snapshot.layout import DrainReason, Flag, UnhealthyReason, ValueSource, reasons_word

_SHORTEST_TRIAL_NS = 150_000_000
_LONGEST_TRIAL_WAIT_NS = 600_000_000_000
#: As plain integers: `|` of two enum flags costs a microsecond each.
_USED, _DRAIN, _UNHEALTHY, _STALE, _SLEEPING, _OVERLOADED, _STUCK, _PLUGIN, _SLOWED = (
    int(flag)
    for flag in (
        Flag.USED, Flag.DRAIN, Flag.UNHEALTHY, Flag.STALE, Flag.SLEEPING,
        Flag.OVERLOADED, Flag.STUCK, Flag.PLUGIN, Flag.SLOWED,
    )
)  # fmt: skip
#: Failures after which the address counts as dead at once: nobody listens there.
_AT_ONCE = frozenset({UnhealthyReason.REFUSED, UnhealthyReason.DEAD})
#: Failures that count as dead only when they repeat: one slow answer or one closed connection is everyday life.
_REPEATED = frozenset({UnhealthyReason.TIMEOUT, UnhealthyReason.RESET})


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a latch is set. Times in ns."""

    #: Age of load values; an endpoint read more slowly gets at least three of its own intervals.
    stale_ns: int = 2_000_000_000
    #: Time without token progress; a long prompt on one engine can take seconds before its first token.
    stuck_ns: int = 15_000_000_000
    #: Time from stuck to its first trial; 0 = never.
    stuck_trial_ns: int = 30_000_000_000
    #: Failures in a row, of the kind that happens to healthy servers too.
    unhealthy_failures: int = 3
    overloaded_waiting: float = 128.0
    overloaded_kv_cache_ratio: float = 0.98
    #: Values this many times older than their bound are unknown.
    forget_factor: float = 10.0


def stale_after_ns(row: EndpointRow, bounds: Bounds) -> int:
    """Age at which the row's load values are stale; a server that is read slowly gets three of its intervals."""
    return max(bounds.stale_ns, 3 * row.interval_ns)


def unhealthy_reason(row: EndpointRow) -> UnhealthyReason:
    """Why the endpoint's last readings failed, or that there was none; NONE after a good one."""
    if row.failure is not None:
        return row.failure.reason
    return UnhealthyReason.NONE if row.observed_ns else UnhealthyReason.NEVER_SCRAPED


def is_unhealthy(row: EndpointRow, bounds: Bounds, *, stale: bool) -> bool:
    """True when requests sent there would most likely fail."""
    if row.failure is None:
        return not row.observed_ns
    reason = row.failure.reason
    if reason in _AT_ONCE:
        return True
    if reason in _REPEATED:
        if not stale and row.current is not None and row.current.source is ValueSource.PLUGIN:
            return False  # its engine was at work a moment ago
        return not row.observed_ns or row.failures_in_a_row >= bounds.unhealthy_failures
    return False


def is_stuck(row: EndpointRow, bounds: Bounds) -> bool:
    """True when requests run or wait and nothing has come of it for the bound, by the moment of the last reading."""
    feed = row.current
    if feed is None or not row.busy_since_ns or not feed.rates.counts_progress:
        return False
    if feed.signals is not None and feed.signals.sleeping:
        return False
    return feed.observed_ns - max(row.progress_ns, row.busy_since_ns) >= bounds.stuck_ns


def follow_stuck(row: EndpointRow, bounds: Bounds) -> bool:
    """Keep the row's record of being stuck; returns whether the flag shows (it does not on trial)."""
    if not is_stuck(row, bounds):
        row.stuck = Stuck()
        return False
    now_ns = row.observed_ns
    stuck = row.stuck
    if not stuck.since_ns:
        row.stuck = stuck = Stuck(now_ns, now_ns + bounds.stuck_trial_ns)
    if stuck.trial_ends_ns and now_ns >= stuck.trial_ends_ns:
        trials = stuck.trials + 1
        wait_ns = min(bounds.stuck_trial_ns << min(trials, 16), _LONGEST_TRIAL_WAIT_NS)
        row.stuck = stuck = Stuck(stuck.since_ns, now_ns + wait_ns, trials)
    elif not stuck.trial_ends_ns and bounds.stuck_trial_ns and now_ns >= stuck.next_trial_ns:
        stuck.trial_ends_ns = now_ns + max(_SHORTEST_TRIAL_NS, 3 * row.interval_ns)
    return not stuck.trial_ends_ns


def is_overloaded(row: EndpointRow, bounds: Bounds) -> bool:
    """True when the last reading's queue or KV cache is past its bound."""
    signals = row.signals
    if signals is None:
        return False
    return (signals.waiting or 0) >= bounds.overloaded_waiting or (
        (signals.kv_cache_usage or 0) >= bounds.overloaded_kv_cache_ratio and (signals.waiting or 0) > 0
    )


def drain_reason(row: EndpointRow) -> DrainReason:
    """Why the endpoint takes no new requests; NONE when it takes them. What its source says goes before its GPUs."""
    if row.spec.draining:
        return row.spec.drain_reason or DrainReason.CONFIG
    return row.condition.drain_reason


def latch(row: EndpointRow, bounds: Bounds, *, stale: bool) -> tuple[int, int]:
    """The row's `flags` and `reasons` words."""
    condition, current = row.condition, row.current
    drain, slowed = drain_reason(row), condition.slowdown_reason
    source = current.source if current is not None else ValueSource.NONE
    flags = _USED
    if drain:
        flags |= _DRAIN
    if is_unhealthy(row, bounds, stale=stale):
        flags |= _UNHEALTHY
    if stale:
        flags |= _STALE
    if current is not None:
        if current.signals is not None and current.signals.sleeping:
            flags |= _SLEEPING
        if is_overloaded(row, bounds):
            flags |= _OVERLOADED
        if follow_stuck(row, bounds):
            flags |= _STUCK
        if source is ValueSource.PLUGIN:
            flags |= _PLUGIN
    if slowed:
        flags |= _SLOWED
    return flags, reasons_word(drain, unhealthy_reason(row), slowed, source)

"""What a model server says about itself, in one form for every engine.

A `Signals` holds what one reading carried and nothing else: a field that was not on the page, or whose value made no
sense
(NaN, infinite, negative, a usage above its range), is None. Nothing is remembered from an earlier reading, so a page
that lost a field loses it here too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from zerohop_snapshot.layout import UnhealthyReason

__all__ = ["SIGNAL_NAMES", "Signals", "SourceError"]


class SourceError(Exception):
    """A reading failed; the loop that asked for it goes on.

    `reason` is the code that the snapshot carries, `detail` one sentence for a person.
    """

    def __init__(self, reason: UnhealthyReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(slots=True)
class Signals:
    """One reading of one endpoint, its ranks already combined. None is "unknown", never 0."""

    #: requests accepted and not yet running, all queues of the engine added
    waiting: float | None = None
    #: requests in the running batch
    running: float | None = None
    #: share of the KV cache held by running requests, 0..1
    kv_cache_usage: float | None = None
    #: tokens per KV block
    block_size: int | None = None
    #: KV blocks of the whole endpoint, ranks added
    num_blocks: int | None = None
    #: tokens that the KV cache of the whole endpoint holds
    kv_capacity_tokens: float | None = None
    #: longest prompt plus answer that the server takes, tokens
    max_model_len: int | None = None
    #: tokens looked up in the prefix cache, counter
    prefix_queries: float | None = None
    #: tokens found in the prefix cache, counter
    prefix_hits: float | None = None
    #: prompt tokens taken in, counter
    prompt_tokens: float | None = None
    #: tokens generated, counter
    generation_tokens: float | None = None
    #: requests thrown back into the queue, counter
    preemptions: float | None = None
    #: engine steps, counter; moves while the engine works
    steps: float | None = None
    #: time to first token: sum of seconds and number of observations, counters
    ttft_sum_s: float | None = None
    ttft_count: float | None = None
    #: time between two tokens of one answer: sum of seconds and number of observations, counters
    itl_sum_s: float | None = None
    itl_count: float | None = None
    #: adapters with a running request; empty set = none, None = the server does not say
    lora_running: frozenset[str] | None = None
    #: adapters with a waiting request
    lora_waiting: frozenset[str] | None = None
    #: adapters that fit at once
    lora_max: int | None = None
    #: True while the engine sleeps and would have to be woken
    sleeping: bool | None = None
    #: model names that the server answers to, adapters included
    models: tuple[str, ...] | None = None
    #: those of `models` that are adapters of another model
    adapters: tuple[str, ...] | None = None
    #: start of the server's process, unix seconds; moves when the counters begin anew
    process_start_s: float | None = None


#: every field of `Signals`, in order
SIGNAL_NAMES: tuple[str, ...] = tuple(field.name for field in fields(Signals))

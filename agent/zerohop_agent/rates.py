"""From counters to rates, means and progress: what one source's successive readings of one endpoint add up to."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from zerohop_agent.signals import Signals

#: Token rates are taken over this long: long enough for a steady figure, short enough to follow a burst.
RATE_WINDOW_NS = 2_000_000_000
#: Latency means are taken over this long: at one answer a second that is ten of them.
MEAN_WINDOW_NS = 10_000_000_000
#: One sample is kept this often, so that a window holds at most 40 of them however fast the readings come.
SAMPLE_INTERVAL_NS = 250_000_000
#: A rate over less than this is mostly the jitter of two readings.
SHORTEST_RATE_NS = 200_000_000


class _Sample(NamedTuple):
    observed_ns: int
    prompt_tokens: float | None
    generation_tokens: float | None
    ttft_sum_s: float | None
    ttft_count: float | None
    itl_sum_s: float | None
    itl_count: float | None


class Rates:
    """Follows the counters of one source. All results are None while unknown; rates in tokens/s, means in seconds.

    A mean stays what it was while nothing new is observed: an idle server has not become faster or slower.
    """

    __slots__ = (
        "_last",
        "_process_start_s",
        "_samples",
        "_steps",
        "counts_progress",
        "generation_tokens_rate",
        "itl_mean_s",
        "prompt_tokens_rate",
        "resets",
        "ttft_mean_s",
    )

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        self._last: _Sample | None = None
        self._steps: float | None = None
        self._process_start_s: float | None = None
        self.prompt_tokens_rate: float | None = None
        self.generation_tokens_rate: float | None = None
        self.ttft_mean_s: float | None = None
        self.itl_mean_s: float | None = None
        #: True when the last reading had a counter from which progress can be told.
        self.counts_progress = False
        #: Times that a counter went backwards: restarts of the server.
        self.resets = 0

    def update(self, signals: Signals, observed_ns: int) -> bool:
        """Take one reading in; returns True when a token or step counter moved, at a restart, and at the first one."""
        sample = _Sample(
            observed_ns,
            signals.prompt_tokens,
            signals.generation_tokens,
            signals.ttft_sum_s,
            signals.ttft_count,
            signals.itl_sum_s,
            signals.itl_count,
        )
        last = self._last
        steps, self._steps = self._steps, signals.steps
        self.counts_progress = (
            signals.prompt_tokens is not None or signals.generation_tokens is not None or signals.steps is not None
        )
        if last is None or self._restarted(last, sample, signals):
            if last is not None:
                self.resets += 1
            self._begin(sample, signals)
            return True
        moved = (
            _moved(last.prompt_tokens, sample.prompt_tokens)
            or _moved(last.generation_tokens, sample.generation_tokens)
            or _moved(steps, signals.steps)
        )
        self._last = sample
        self._measure(sample)
        if observed_ns - self._samples[-1].observed_ns >= SAMPLE_INTERVAL_NS:
            self._samples.append(sample)
            # The one sample just outside of the window stays: it is where the window begins.
            while len(self._samples) > 2 and self._samples[1].observed_ns <= observed_ns - MEAN_WINDOW_NS:
                self._samples.popleft()
        return moved

    def _begin(self, sample: _Sample, signals: Signals) -> None:
        self._samples.clear()
        self._samples.append(sample)
        self._last = sample
        self._process_start_s = signals.process_start_s
        self.prompt_tokens_rate = self.generation_tokens_rate = None
        self.ttft_mean_s = self.itl_mean_s = None

    def _restarted(self, last: _Sample, sample: _Sample, signals: Signals) -> bool:
        start = signals.process_start_s
        if start is not None and self._process_start_s is not None and abs(start - self._process_start_s) > 1:
            return True
        return any(
            before is not None and now is not None and now < before
            for before, now in zip(last[1:], sample[1:], strict=True)
        )

    def _measure(self, sample: _Sample) -> None:
        since = self._since(sample.observed_ns - RATE_WINDOW_NS)
        elapsed_ns = sample.observed_ns - since.observed_ns
        if elapsed_ns >= SHORTEST_RATE_NS:
            self.prompt_tokens_rate = _rate(since.prompt_tokens, sample.prompt_tokens, elapsed_ns)
            self.generation_tokens_rate = _rate(since.generation_tokens, sample.generation_tokens, elapsed_ns)
        oldest = self._samples[0]
        self.ttft_mean_s = _mean(
            oldest.ttft_sum_s, oldest.ttft_count, sample.ttft_sum_s, sample.ttft_count, self.ttft_mean_s
        )
        self.itl_mean_s = _mean(oldest.itl_sum_s, oldest.itl_count, sample.itl_sum_s, sample.itl_count, self.itl_mean_s)

    def _since(self, begin_ns: int) -> _Sample:
        """The newest sample that is at least as old as `begin_ns`, else the oldest one."""
        found = self._samples[0]
        for sample in self._samples:
            if sample.observed_ns > begin_ns:
                break
            found = sample
        return found


def _moved(before: float | None, now: float | None) -> bool:
    return before is not None and now is not None and now != before


def _rate(before: float | None, now: float | None, elapsed_ns: int) -> float | None:
    if before is None or now is None:
        return None
    return (now - before) * 1e9 / elapsed_ns


def _mean(
    sum_before: float | None, count_before: float | None, sum_now: float | None, count_now: float | None,
    otherwise: float | None,
) -> float | None:  # fmt: skip
    if sum_now is None or count_now is None:
        return None
    count = count_now - (count_before or 0.0)
    if count_before is None or sum_before is None or count <= 0:
        return otherwise
    return (sum_now - sum_before) / count

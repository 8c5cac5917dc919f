"""Runs one scheduling profile: filters in order, weighted scores, one picker, and more for a gateway's retries."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from zerohop_picker.scheduling.config import PipelineConfig, Plugin, Profile
from zerohop_picker.scheduling.guard import WATCH, TimeLimited
from zerohop_picker.scheduling.pickers import max_score
from zerohop_picker.scheduling.profiles import Single
from zerohop_picker.scheduling.request import Randomness, Request
from zerohop_picker.scheduling.user_plugins import DEFAULT_BUDGET_MS
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.names import host_of
from zerohop_picker.state.view import Floats, Mask

#: An unknown score counts as the worst known one, less this: it never wins a tie for being unknown.
UNKNOWN_PENALTY: Final = 1e-6
#: One decision in this many is timed plugin by plugin: a clock pair costs 0.15 us, ten of them 2 % of a decision.
TIMED_EVERY: Final = 16

#: Envoy refuses response headers above 60 kB in all by default.
_HEADER_BYTES: Final = 8_000
#: A load above every real one.
_MOST: Final = 1e9

Observe = Callable[[str, str, str, float], None]


class Outcome:
    """What one profile found: rows in order, best first."""

    __slots__ = ("_endpoints", "_mask", "addresses", "rows")

    def __init__(
        self, rows: tuple[int, ...], addresses: tuple[str, ...], endpoints: Endpoints, mask: Mask | None = None
    ) -> None:
        """Take the rows; they were chosen among ``endpoints``, or among those where ``mask`` holds."""
        self.rows = rows
        self.addresses = addresses
        self._endpoints = endpoints
        self._mask = mask

    @property
    def endpoints(self) -> Endpoints:
        """The candidates that the filters left."""
        if self._mask is not None:
            self._endpoints, self._mask = self._endpoints.take(self._mask), None
        return self._endpoints

    def uncached_tokens(self, request: Request) -> float:
        """Return the prompt tokens that the first endpoint would have to prefill."""
        lookup = request.prefix
        if lookup is None or lookup.blocks == 0:
            return float(request.prompt_tokens)
        return request.prompt_tokens * (1.0 - lookup.depths.get(self.rows[0], 0) / lookup.blocks)

    def redirect(self, port: int) -> None:
        """Send to the same hosts at another port."""
        hosts = [host_of(address) for address in self.addresses]
        texts = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
        self.addresses = tuple(dict.fromkeys(texts))


class Nothing(NamedTuple):
    """A profile has no endpoint left; ``structural``: none *can* serve, else none *should* right now."""

    plugin: str
    structural: bool


class Trace:
    """Scores per plugin and endpoint of one decision, for the answer to a debug request."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        """Have none yet."""
        self.entries: list[dict[str, Any]] = []

    def add(self, plugin: str, weight: float, endpoints: Endpoints, values: Floats) -> None:
        """Note one plugin's values."""
        shown = {
            a: None if math.isnan(v) else round(float(v), 4) for a, v in zip(endpoints.addresses(), values, strict=True)
        }
        self.entries.append({"plugin": plugin, "weight": weight, "values": shown})

    def shown(self) -> bytes:
        """Return the scores as JSON for a response header; of a large pool only the first endpoints."""
        text = json.dumps(self.entries, separators=(",", ":")).encode()
        if len(text) <= _HEADER_BYTES:
            return text
        short = [{**entry, "values": dict(list(entry["values"].items())[:16])} for entry in self.entries]
        return json.dumps(short, separators=(",", ":")).encode()[:_HEADER_BYTES]


class PastDeadline(Exception):
    """The time for this decision is over: the fallback answers."""


class _Step:
    __slots__ = ("foreign", "lasting", "name", "run", "structural", "type", "weight")

    def __init__(self, plugin: Plugin, weight: float = 1.0) -> None:
        self.run: Callable[[Endpoints, Request], Any] = plugin.instance
        self.name = plugin.name
        self.type = plugin.type.type
        self.structural = plugin.type.structural
        self.weight = weight
        #: A user's plugin, after which the request's deadline is looked at; ours take microseconds.
        self.foreign = plugin.type.note == "user plugin"
        #: The fallback runs it, too.
        self.lasting = not self.foreign and (plugin.type.structural or plugin.type.lasting)
        if self.foreign:
            function = getattr(self.run, "func", self.run)
            budget = float(getattr(function, "budget_ms", DEFAULT_BUDGET_MS))
            self.run = TimeLimited(self.run, plugin.name, plugin.kind, budget)


class CompiledProfile:
    """One profile, ready to run."""

    def __init__(self, profile: Profile, observe: Observe | None) -> None:
        """Compile ``profile``; ``observe(extension point, type, name, seconds)`` gets sampled durations."""
        self.name = profile.name
        self._filters = [_Step(plugin) for plugin in profile.filters]
        self._scorers = [_Step(plugin, weight) for plugin, weight in profile.scorers if weight > 0.0]
        self._last_filter = self._filters[-1] if self._filters else None
        self._pick = profile.picker.instance
        self._picker = profile.picker
        self._count: int = profile.picker.values["maxNumOfEndpoints"]
        self._observe = observe
        self._runs = 0

    def run(self, endpoints: Endpoints, request: Request, trace: Trace | None = None) -> Outcome | Nothing:
        """Return the profile's choice among ``endpoints``."""
        self._runs += 1
        if self._observe is not None and self._runs % TIMED_EVERY == 1:
            return self._run(endpoints, request, trace, self._observe)
        return self._run(endpoints, request, trace, None)

    def _run(
        self, endpoints: Endpoints, request: Request, trace: Trace | None, observe: Observe | None
    ) -> Outcome | Nothing:
        eligible = endpoints
        mask: Mask | None = None
        for step in self._filters:
            mask = _call(step, endpoints, request, "filter", observe)
            if mask is None:
                continue
            held = mask.tobytes()  # counted in a tenth of the time of any() and all()
            kept = held.count(1)
            if kept == len(endpoints):
                continue
            if trace is not None:
                trace.add(step.name, 0.0, endpoints, mask.astype(np.float64))
            if kept == 0:
                return Nothing(step.name, step.structural)
            if kept == 1 and step is self._last_filter and trace is None and not step.structural:
                rows = [endpoints.row(held.index(1))]
                return self._outcome(rows, endpoints, mask, eligible, request)
            endpoints = endpoints.take(mask)
            if step.structural:
                eligible = endpoints
        if len(endpoints) == 1 and trace is None:
            rows = [endpoints.row(0)]  # one is left: whatever its scores are
        else:
            scores = self._score(endpoints, request, trace, observe)
            started = time.perf_counter() if observe is not None else 0.0
            chosen = self._pick(scores, self._count, request.random)
            if observe is not None:
                observe("picker", self._picker.type.type, self._picker.name, time.perf_counter() - started)
            rows = [endpoints.row(index) for index in chosen]
        return self._outcome(rows, endpoints, None, eligible, request)

    def lasting(self, endpoints: Endpoints, request: Request) -> tuple[Endpoints, Endpoints] | Nothing:
        """Return those that (should, can) serve, by the filters that the fallback must not forget."""
        eligible = endpoints
        for step in self._filters:
            mask = _call(step, endpoints, request, "filter", None) if step.lasting else None
            if mask is None or mask.all():
                continue
            if mask.any():
                endpoints = endpoints.take(mask)
                eligible = endpoints if step.structural else eligible
            elif step.structural:
                return Nothing(step.name, structural=True)
        return endpoints, eligible

    def _outcome(
        self, rows: list[int], endpoints: Endpoints, mask: Mask | None, eligible: Endpoints, request: Request
    ) -> Outcome:
        """Return ``rows`` as chosen among ``endpoints`` (where ``mask`` holds), filled up from those that can serve."""
        if len(rows) < self._count and (mask is not None or len(eligible) > len(endpoints)):
            rows += _fallbacks(eligible, rows, self._count - len(rows), request.random)
        texts = endpoints.view.names.addresses
        return Outcome(tuple(rows), tuple([texts[row] or "" for row in rows]), endpoints, mask)

    def _score(self, endpoints: Endpoints, request: Request, trace: Trace | None, observe: Observe | None) -> Floats:
        total: Floats | None = None
        parts = []
        for step in self._scorers:
            scores = _call(step, endpoints, request, "scorer", observe)
            if scores is None:
                continue
            if trace is not None:
                trace.add(step.name, step.weight, endpoints, scores)
            parts.append((scores, step.weight))
            if total is None:
                # Not a copy where none is needed: nothing below writes to a single scorer's result.
                total = scores if len(self._scorers) == 1 and step.weight == 1.0 else scores * step.weight
            else:
                total += scores * step.weight
        if total is None:
            return np.zeros(len(endpoints))
        # False for NaN as for infinity: one look at all scores, in half a microsecond.
        if float(total.dot(total)) < math.inf:
            return total
        return _with_unknowns(parts, len(endpoints))


def _call(step: _Step, endpoints: Endpoints, request: Request, point: str, observe: Observe | None) -> Any:
    """Return what a plugin says; None when it failed, which is counted and costs nobody else anything."""
    started = time.perf_counter() if observe is not None else 0.0
    try:
        result = step.run(endpoints, request)
    except Exception as error:
        health = WATCH.of(step.name)
        health.errors += 1
        health.last_error = f"{type(error).__name__}: {error}"
        return None
    if step.foreign and 0 < request.llm.deadline_ns < time.monotonic_ns():
        raise PastDeadline
    if observe is not None:
        observe(point, step.type, step.name, time.perf_counter() - started)
    return result


def _with_unknowns(parts: list[tuple[Floats, float]], count: int) -> Floats:
    """Add scores of which some are unknown: each such one counts as the worst known one, less a hair."""
    total = np.zeros(count)
    for scores, weight in parts:
        unknown = ~np.isfinite(scores)
        if unknown.all():
            continue  # no opinion at all
        if unknown.any():
            scores = np.where(unknown, scores[~unknown].min() - UNKNOWN_PENALTY, scores)
        total += scores * weight
    return total


def _fallbacks(eligible: Endpoints, chosen: list[int], count: int, random: Randomness) -> list[int]:
    """Return up to ``count`` more rows that can serve, the least loaded first: better a cold cache than a 503."""
    count = min(count, len(eligible) - len(chosen))
    # fmin takes the limit where the load is NaN: unknown comes last, but before what is chosen already.
    key: Floats = np.fmin(eligible.requests, _MOST)
    np.negative(key, out=key)
    for row in chosen:
        key[eligible.find(row)] = -math.inf
    return [eligible.row(index) for index in max_score(key, count, random)]


class Pipeline:
    """A configuration, compiled: immutable, swapped as a whole."""

    def __init__(self, config: PipelineConfig, observe: Observe | None = None) -> None:
        """Compile every profile of ``config``."""
        self.config = config
        self.profiles: Mapping[str, CompiledProfile] = {
            name: CompiledProfile(profile, observe) for name, profile in config.profiles.items()
        }
        self.handler = config.handler.instance
        #: The profile that every request runs, where there is no choice of profiles.
        self.only = self.profiles[self.handler.profile] if isinstance(self.handler, Single) else None
        self.detector = config.detector.instance
        plugins = list(config.plugins.values())
        #: Plugins that want to know where a request went, each with the profile it watches ("" = the primary one).
        self.watchers = [
            (plugin.instance, getattr(plugin.instance, "profile_name", ""))
            for plugin in plugins
            if hasattr(plugin.instance, "picked")
        ]
        self.sessions = [entry for entry in self.watchers if hasattr(entry[0], "response_headers")]
        #: Whether a pick has to be told to the prefix directory.
        self.uses_prefix = any("prefix" in plugin.type.reads for plugin in plugins)

    def lasting(self, endpoints: Endpoints, request: Request) -> tuple[Endpoints, Endpoints] | Nothing:
        """Return those that (should, can) answer the client, by the filters that the fallback must not forget."""
        return self.profiles[self.handler.primary(request)].lasting(endpoints, request)

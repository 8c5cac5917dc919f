"""The scheduler: from a request to a decision, over the newest snapshot, by the configured pipeline."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable
from typing import Final

from zerohop_picker.models.catalog import Resolution
from zerohop_picker.models.resources import Resources
from zerohop_picker.request.model import LLMRequest
from zerohop_picker.scheduling import refusals
from zerohop_picker.scheduling.catalogs import Catalogs
from zerohop_picker.scheduling.config import PipelineConfig
from zerohop_picker.scheduling.fallback import FALLBACK_LENGTH, Fallback
from zerohop_picker.scheduling.loading import load
from zerohop_picker.scheduling.measures import Measures
from zerohop_picker.scheduling.pipeline import Nothing, Outcome, PastDeadline, Pipeline, Trace
from zerohop_picker.scheduling.plugin_files import PluginFiles
from zerohop_picker.scheduling.profiles import Plan
from zerohop_picker.scheduling.request import Request
from zerohop_picker.scheduling_contract import Decision, Refusal
from zerohop_picker.state.candidates import Candidates
from zerohop_picker.state.cells import SharedCells
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.loads import Cells, Loads
from zerohop_picker.state.prefixes import Directory, PrefixUse
from zerohop_picker.state.sessions import Sessions, Table
from zerohop_picker.state.ticket import PickTicket
from zerohop_picker.state.view import Latest, ReaderLike, View
from zerohop_process import log
from zerohop_process.errors import ConfigError
from zerohop_snapshot import PeerCells, PickerCell, SnapshotReader

#: A snapshot that was not renewed for this long says that the agent is gone: its loads are not used any more.
AGENT_SILENT_NS: Final = 2_000_000_000
DEBUG_REQUEST_HEADER: Final = "x-zerohop-debug"
DEBUG_RESPONSE_HEADER: Final = "x-zerohop-scores"

_LOG = log.get(__name__)


class StandardScheduler:
    """Implements ``scheduling_contract.Scheduler``. For one thread; one per worker."""

    def __init__(
        self,
        config: PipelineConfig,
        reader: SnapshotReader | ReaderLike,
        cell: PickerCell,
        peers: PeerCells | Cells,
        directory: Directory | None = None,
        sessions: Table | None = None,
        *,
        measures: Measures | None = None,
        models: Resources | None = None,
        seed: int | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Schedule from ``reader``, count in ``cell``, and share the rest with the node's other workers.

        ``models`` are the objects of ``--models-file``; ``seed`` makes ties repeatable.
        """
        self._latest = Latest(reader)
        self._cell = cell
        self._loads = Loads(SharedCells(peers, cell) if isinstance(peers, PeerCells) else peers)
        self._candidates = Candidates(self._loads)
        self._prefixes = PrefixUse(directory, config.prefix) if directory is not None else None
        self._sessions = Sessions(sessions) if sessions is not None else None
        self.measures = measures or Measures()
        self.measures.watch_pools(lambda: self._latest.view(clock()))
        if self._prefixes is not None:
            self.measures.watch_prefixes(self._prefixes)
        self._random = random.Random(seed)
        self._catalogs = Catalogs(models or Resources(), self._random.getrandbits(16))
        self._fallback = Fallback()
        self._clock = clock
        self._changes = log.OncePerChange()
        self._agent_alive: bool | None = None
        self._files = PluginFiles()
        self.swap(config)

    # Configuration.

    @property
    def config(self) -> PipelineConfig:
        """The pipeline in use."""
        return self._pipeline.config

    def swap(self, config: PipelineConfig) -> None:
        """Decide by ``config`` from the next request on."""
        self._pipeline = Pipeline(config, self.measures.plugin_duration)
        if self._prefixes is not None:
            self._prefixes.configure(config.prefix)
        self._files.watch(config.files)

    def set_models(self, models: Resources) -> None:
        """Use other objects of ``--models-file`` from the next request on."""
        self._catalogs.set_models(models)

    def _reload(self) -> None:
        """Load the configuration again: a file that a plugin came from has changed. Or keep the last good one."""
        config = self._pipeline.config
        try:
            self.swap(load(config.text, config.source))
        except ConfigError as error:
            self.measures.reloads.labels("failed").increment()
            _LOG.warning("plugin file not reloaded, the last good one stays: %s", error)
        else:
            self.measures.reloads.labels("loaded").increment()
            log.event(_LOG, "info", "plugin file reloaded", files=",".join(map(str, config.files)))

    def heartbeat(self, now_ns: int) -> None:
        """Tell the other workers of this node that we live; call it a few times a second."""
        self._cell.heartbeat(now_ns)

    def close(self) -> None:
        """Leave the shared memory: this worker's cell goes, the directory and the sessions stay."""
        self._cell.close()

    # The contract.

    def ready(self, pool: str | None) -> bool:
        """Return whether there is an endpoint to choose from in ``pool``, however doubtful."""
        now_ns = self._clock()
        view = self._latest.view(now_ns)
        if view is None:
            return False
        known, bit = view.names.pool_bit(pool)
        return known and bool(view.membership.members(bit).any())

    def schedule(self, request: LLMRequest, now_ns: int) -> Decision | Refusal:
        """Return the decision by the configured pipeline; a fault of our own ends in the fallback."""
        if self._files and self._files.changed(now_ns):
            self._reload()
        started = time.perf_counter()
        try:
            decision = self._schedule(request, now_ns)
            self.measures.durations.observe(time.perf_counter() - started)
            if isinstance(decision, Refusal):
                self.measures.refused.increment()
            return decision
        except PastDeadline:
            return self.fallback(request, now_ns)
        except Exception as error:
            self.measures.faults.increment()
            text = f"{type(error).__name__}: {error}"
            self._changes.log(_LOG, "error", "fault", text, "decision failed, fallback used", error=text)
            return self.fallback(request, now_ns)

    def fallback(self, request: LLMRequest, now_ns: int) -> Decision | Refusal:
        """Return the decision without scores: least waiting + picks since, least in flight, round robin.

        Of the plugins only those filters count that say who can serve, and that keep adapters in place.
        """
        self.measures.fallbacks.increment()
        found = self._eligible(request, now_ns)
        if isinstance(found, Refusal):
            return found
        view, endpoints = found
        asked = Request(request, view, now_ns, random=self._random, sessions=self._sessions)
        resolution = self._catalogs.resolve(view.names, request)
        if resolution.reserved:
            return refusals.reserved(request)
        if resolution.model is not None:
            asked.model = resolution.model
        should = can = endpoints
        # The pipeline may be what failed; then every candidate is as good as another.
        with contextlib.suppress(Exception):
            lasting = self._pipeline.lasting(endpoints, asked)
            if isinstance(lasting, Nothing):
                return refusals.dropped(lasting)
            should, can = lasting
        silent = now_ns - view.published_ns > AGENT_SILENT_NS
        order = self._fallback.by_in_flight if silent else self._fallback.by_load
        rows = order(should, self._random)
        if len(rows) < FALLBACK_LENGTH and len(can) > len(should):
            rows = list(dict.fromkeys(rows + order(can, self._random)))[:FALLBACK_LENGTH]
        texts = view.names.addresses
        outcome = Outcome(tuple(rows), tuple(texts[row] or "" for row in rows), endpoints)
        return self._decide(asked, Plan("", {"": outcome}), resolution, None, plugins=False)

    def _schedule(self, llm: LLMRequest, now_ns: int) -> Decision | Refusal:
        found = self._eligible(llm, now_ns)
        if isinstance(found, Refusal):
            return found
        view, endpoints = found
        alive = now_ns - view.published_ns <= AGENT_SILENT_NS
        if alive is not self._agent_alive:
            self._agent_alive = alive
            if alive:
                log.event(_LOG, "info", "the snapshot is being renewed")
            else:
                log.event(_LOG, "warning", "the snapshot is not renewed: least in flight, then round robin")
        if not alive:
            return self.fallback(llm, now_ns)
        request = Request(llm, view, now_ns, random=self._random, prefixes=self._prefixes, sessions=self._sessions)
        resolution = self._catalogs.resolve(view.names, llm)
        if resolution.reserved:
            return refusals.reserved(llm)
        if resolution.model is not None:
            request.model = resolution.model
        request.priority = resolution.priority
        pipeline = self._pipeline
        if resolution.priority < 0 and pipeline.detector.pool(endpoints) >= 1.0:
            self.measures.shed.increment()
            return refusals.SHED
        trace = Trace() if pipeline.config.debug_scores and llm.headers.get(DEBUG_REQUEST_HEADER) else None
        if pipeline.only is not None:
            found_one = pipeline.only.run(endpoints, request, trace)
            if isinstance(found_one, Nothing):
                return refusals.dropped(found_one)
            return self._decide(request, Plan(pipeline.only.name, {pipeline.only.name: found_one}), resolution, trace)
        nothing: list[Nothing] = []

        def run(profile: str) -> Outcome | None:
            result = pipeline.profiles[profile].run(endpoints, request, trace)
            if isinstance(result, Nothing):
                nothing.append(result)
                return None
            return result

        plan = pipeline.handler(run, request)
        if plan is None:
            return refusals.dropped(nothing[-1])
        return self._decide(request, plan, resolution, trace)

    def _eligible(self, llm: LLMRequest, now_ns: int) -> tuple[View, Endpoints] | Refusal:
        """Return the candidates: of the pool, usable, and within the gateway's subset; or why there are none."""
        view = self._latest.view(now_ns)
        if view is None:
            return refusals.NO_SNAPSHOT
        self._loads.settle(view, now_ns)
        known, bit = view.names.pool_bit(llm.pool)
        if not known:
            return refusals.unknown_pool(llm.pool)
        wanted = llm.test_selection or llm.subset
        if bit is None and wanted is None and len(view.names.pool_bits) > 1:
            # Without a subset hint nothing says whose endpoints these may be.
            names = ", ".join(sorted(view.names.pool_bits))
            self._changes.log(
                _LOG, "error", "pool", names, f"streams name no pool, and there are several ({names}): give each a "
                "listener (--pool NS/NAME=WHERE), or let the gateway send the metadata x-zerohop-pool",
            )  # fmt: skip
            return refusals.AMBIGUOUS_POOL
        endpoints = self._candidates.of(view, bit, wanted, now_ns)
        if not len(endpoints):
            return refusals.NO_CANDIDATES
        if endpoints.doubtful:
            self.measures.degraded.increment()
        return view, endpoints

    def _decide(
        self, request: Request, plan: Plan, resolution: Resolution, trace: Trace | None, *, plugins: bool = True
    ) -> Decision:
        """Book the pick: in-flight count, prefix directory, sessions; and write down what the gateway has to do."""
        outcome: Outcome = plan.results[plan.primary]
        view, now_ns = request.view, request.now_ns
        generations = view.membership.generations
        row = outcome.rows[0]
        prefill: Outcome | None = plan.results.get(plan.prefill) if plan.prefill else None
        extra = None if prefill is None else (prefill.rows[0], generations.item(prefill.rows[0]))
        generation = generations.item(row)
        headers: tuple[tuple[str, bytes], ...] = ()
        pipeline = self._pipeline
        if plugins:
            lookup = request.prefix if pipeline.uses_prefix else None
            if lookup is not None and self._prefixes is not None:
                self._prefixes.dispatched(lookup, row, generation, now_ns)
                if extra is not None:
                    self._prefixes.dispatched(lookup, *extra, now_ns)
            for plugin, profile in pipeline.watchers:
                watched = plan.results.get(profile) if profile else outcome
                if watched is not None:
                    plugin.picked(request, watched.endpoints, watched.rows[0])
            for plugin, profile in pipeline.sessions:
                watched = plan.results.get(profile) if profile else outcome
                if watched is not None:
                    headers += plugin.response_headers(request, watched.rows[0])
        tokens = int((prefill or outcome).uncached_tokens(request))
        model = resolution.model if resolution.model != request.llm.model else None
        debug = None
        if trace is not None:
            debug = trace.entries
            headers += ((DEBUG_RESPONSE_HEADER, trace.shown()),)
            log.event(_LOG, "info", "scores", request_id=request.llm.request_id, picked=outcome.addresses[0],
                      scores=json.dumps(debug))  # fmt: skip
        asked = request.llm.model or ""
        self.measures.decided.increment()
        self.measures.requests.labels(asked, model or asked, str(resolution.priority)).increment()
        observed_ns = self._loads.observed_ns(row)
        if observed_ns:
            self.measures.value_age.observe((now_ns - observed_ns) * 1e-9)
        # Last of all: nothing after it can fail and leave a count behind.
        ticket = PickTicket(
            self._cell, row, generation, tokens, now_ns, locate=self._locate, now=self._clock, extra=extra
        )
        return Decision(
            outcome.addresses,
            ticket,
            model,
            plan.request_headers,
            tuple(dict(headers).items()) if headers else (),
            None,
            debug,
        )

    def _locate(self, endpoint: str) -> tuple[int, int] | None:
        view = self._latest.view(self._clock())
        row = view.names.row_of.get(endpoint) if view is not None else None
        return None if view is None or row is None else (row, int(view.raw("generation")[row]))

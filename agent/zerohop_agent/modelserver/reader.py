"""Reads one model server again and again, as often as it can bear."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from zerohop_agent.endpoints import EndpointSpec
from zerohop_agent.modelserver.beside import BesidePage
from zerohop_agent.modelserver.client import Client, Fetched, tls_context
from zerohop_agent.modelserver.pacing import Pacing
from zerohop_agent.modelserver.page import PageReader
from zerohop_agent.modelserver.response import Response
from zerohop_agent.modelserver.selfcheck import advice_on_failure, findings
from zerohop_agent.modelserver.settings import PROTOCOL_VERSION, ModelServerSettings
from zerohop_agent.signals import Signals, SourceError
from zerohop_process.address import Address
from zerohop_process.log import OncePerChange, event, get
from zerohop_process.orca import ORCA_REQUEST_HEADER, ORCA_RESPONSE_HEADER, parse_orca
from zerohop_snapshot.layout import UnhealthyReason

__all__ = ["METRICS_ACCEPT", "ModelServerReader"]

_logger = get("agent.modelserver")

#: The text format keeps `vllm:` as it is; asked for OpenMetrics, prometheus_client >= 0.23 answers `vllm_`.
METRICS_ACCEPT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
#: a dead server is asked once a second, so that its return is seen within one
_FAILURE_MAX_NS = 1_000_000_000
_NARROW_TIMEOUT_NS = 250_000_000
_DEFAULT_PATH = "/metrics"
#: served models, latencies and the like are on the page alone, so it is read even when the engine writes its own cell
_RELAXED_NS = 1_000_000_000
_WRONG_ANSWERS = (UnhealthyReason.HTTP_STATUS, UnhealthyReason.NOT_METRICS, UnhealthyReason.ENGINE_UNKNOWN)
#: ORCA name -> field, for fields that the page does not have
_ORCA_FIELDS = {
    "num_requests_waiting": "waiting",
    "num_requests_running": "running",
    "kv_cache_usage_perc": "kv_cache_usage",
    "kv_cache_utilization": "kv_cache_usage",
    "max_token_capacity": "kv_capacity_tokens",
}

OnSignals = Callable[[EndpointSpec, Signals, int, int], None]
OnFailure = Callable[[EndpointSpec, SourceError], None]


class ModelServerReader:
    """Scrapes one endpoint over one kept-alive connection until cancelled.

    `on_signals(spec, signals, observed_ns, elapsed_ns)` is called after each good reading. `observed_ns` (monotonic)
    is the
    moment the request was written: the gauges are of then or a little later, so that a pick made since is counted
    at worst twice and never lost. `elapsed_ns` is the time to the last byte. `on_failure(spec, error)` is called
    after each bad one.
    """

    def __init__(
        self, spec: EndpointSpec, settings: ModelServerSettings, on_signals: OnSignals, on_failure: OnFailure
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._on_signals = on_signals
        self._on_failure = on_failure
        self._base_ns = spec.scrape_interval_ns or settings.scrape_interval_ns
        self._pacing = Pacing(self._base_ns, settings.max_interval_ns, _FAILURE_MAX_NS)
        self._mapping = settings.mappings.get(spec.engine) if spec.engine is not None else None
        self._page = self._new_page()
        #: the path that prints the wanted metrics only; None: not tried yet, or not to be had (then not untried either)
        self._narrow_path: str | None = None
        self._narrow_untried = settings.narrow
        self._path = spec.metrics_path
        if self._mapping is not None and spec.metrics_path == _DEFAULT_PATH:
            self._path = self._mapping.metrics_path
        self._beside = BesidePage(spec.address, settings, lambda: self._client(spec.address.port))
        self._process_start_s: float | None = None
        self._healthy = False
        self._floor_ns = 0
        self._surveys_checked = 0
        self._pause: asyncio.Future[None] | None = None
        self._once = OncePerChange()

    @property
    def engine(self) -> str | None:
        """The engine whose mapping is in use; None before the first page when none was configured."""
        if self._spec.engine is not None:
            return self._spec.engine
        return self._page.engine.name if self._page.engine is not None else None

    @property
    def interval_ns(self) -> int:
        """The interval in use now, after any back-off."""
        return self._pacing.interval_ns

    def relax(self, *, on: bool) -> None:
        """Read once a second only, while the engine writes its own cell; off: read now, then as often as ever."""
        self._pacing.relax(_RELAXED_NS if on else 0)
        if not on and self._pause is not None:
            _end(self._pause)

    async def run(self) -> None:
        """Read until cancelled."""
        self._check_configuration()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_page(), name=f"scrape {self._spec.address}")
            group.create_task(self._beside.follow_models(), name=f"models {self._spec.address}")
            group.create_task(self._beside.follow_health(self._health_path), name=f"health {self._spec.address}")

    def _new_page(self) -> PageReader:
        return PageReader(self._spec.engine if self._mapping else None, self._settings.mappings)

    def _client(self, port: int) -> Client:
        settings = self._settings
        tls = None
        if self._spec.metrics_scheme == "https":
            tls = tls_context(verify=settings.tls_verify, ca_file=settings.tls_ca_file)
        headers = ((ORCA_REQUEST_HEADER, "TEXT"),) if settings.orca else ()
        address = Address(self._spec.address.host, port)
        return Client(address, tls=tls, limit_bytes=settings.limit_bytes, headers=headers)

    def _health_path(self) -> str:
        """Return the path at which this engine tells that it is dead; empty where it has none, or its page is gone."""
        mapping = self._page.engine
        return mapping.health_path if mapping is not None else ""

    async def _follow_page(self) -> None:
        client = self._client(self._spec.metrics_port or self._spec.address.port)
        try:
            # Endpoints that appear together must not be read in step for ever.
            due_ns = self._pacing.first_start_ns(time.monotonic_ns(), random.random())
            while True:
                await self._pause_until(due_ns)
                started_ns = time.monotonic_ns()
                await self._read_once(client)
                due_ns = self._pacing.next_start_ns(started_ns, time.monotonic_ns(), random.random())
        finally:
            client.close()

    async def _pause_until(self, due_ns: int) -> None:
        loop = asyncio.get_running_loop()
        pause = loop.create_future()
        timer = loop.call_later(max(0.0, (due_ns - time.monotonic_ns()) / 1e9), _end, pause)
        self._pause = pause
        try:
            await pause
        finally:
            timer.cancel()
            self._pause = None

    async def _read_once(self, client: Client) -> None:
        try:
            if self._spec.engine is not None and self._mapping is None:
                known = ", ".join(self._settings.mappings)
                text = f"no engine is called {self._spec.engine!r}; known are {known}"
                raise SourceError(UnhealthyReason.ENGINE_UNKNOWN, text)
            fetched = await self._fetch(client, self._narrow_path or self._path)
            signals = self._understand(fetched.response)
            if self._beside.dead:
                raise SourceError(UnhealthyReason.DEAD, f"GET {self._health_path()} says that the engine is dead")
        except SourceError as error:
            if self._narrow_path is not None and error.reason in _WRONG_ANSWERS:
                self._narrow_path, self._page = None, self._new_page()  # another server than the one that could
            self._failed(error)
            return
        response = fetched.response
        elapsed_ns = fetched.received_ns - fetched.requested_ns
        self._add_slow_knowledge(signals, response.headers.get(ORCA_RESPONSE_HEADER) if self._settings.orca else None)
        self._succeeded(signals, elapsed_ns)
        self._on_signals(self._spec, signals, fetched.requested_ns, elapsed_ns)
        if self._narrow_untried and not self._page.multi_process:
            self._narrow_untried = False
            await self._try_narrow(client, len(response.body))

    async def _fetch(self, client: Client, path: str) -> Fetched:
        # A server that may be asked only seldom may also take its time.
        timeout_ns = max(self._settings.timeout_ns, self._floor_ns)
        return await client.get(path, accept=METRICS_ACCEPT, timeout_s=timeout_ns / 1e9)

    def _understand(self, response: Response) -> Signals:
        path = self._path
        if response.status != 200:
            advice = advice_on_failure(path, response.status, b"")
            text = f"GET {path} answers {response.status}" + (f": {advice}" if advice else "")
            raise SourceError(UnhealthyReason.HTTP_STATUS, text)
        try:
            return self._page.read(response.body, response.headers.get("content-type", ""))
        except SourceError as error:
            advice = advice_on_failure(path, 200, response.body[:64])
            raise SourceError(error.reason, f"{error.detail}; {advice}") from None if advice else error

    async def _try_narrow(self, client: Client, whole_bytes: int) -> None:
        """Ask once for the wanted metrics only, and keep to that if the same series come back on a smaller page."""
        query = self._page.narrow_query()
        if query is None or "?" in self._path:
            return
        path = f"{self._path.rstrip('/')}/?{query}"
        page = self._new_page()
        try:
            # Not long: the values of the whole page grow old meanwhile.
            timeout_s = min(self._settings.timeout_ns, _NARROW_TIMEOUT_NS) / 1e9
            response = (await client.get(path, accept=METRICS_ACCEPT, timeout_s=timeout_s)).response
            if response.status == 200:
                page.read(response.body, response.headers.get("content-type", ""))
        except SourceError:
            return
        if page.names == self._page.names and 2 * len(response.body) < whole_bytes:
            self._narrow_path, self._page, self._surveys_checked = path, page, 0

    def _failed(self, error: SourceError) -> None:
        self._pacing.failed()
        self._healthy = False
        state = (error.reason, error.detail)
        text = "reading the endpoint fails"
        self._once.log(
            _logger, "warning", "health", state, text, endpoint=self._spec.address, reason=error.reason.name.lower(),
            detail=error.detail,
        )  # fmt: skip
        self._on_failure(self._spec, error)

    def _succeeded(self, signals: Signals, elapsed_ns: int) -> None:
        self._pacing.succeeded(elapsed_ns)
        if self._page.surveys != self._surveys_checked:
            self._surveys_checked = self._page.surveys
            self._floor_ns = self._find_floor_ns()
            self._pacing.set_floor(self._floor_ns)
            self._check_page(signals)
        if self._once.changed("health", None):
            event(_logger, "info", "reading the endpoint works", endpoint=self._spec.address, engine=self.engine)
        start_s = signals.process_start_s
        if start_s != self._process_start_s or not self._healthy:
            # A server that does not tell when it started may be another one after each outage.
            self._beside.ask_again(forget=start_s is None or start_s != self._process_start_s)
        self._process_start_s = start_s
        self._healthy = True

    def _find_floor_ns(self) -> int:
        """Return the shortest interval that this server bears, unless its endpoint insists on another."""
        if self._spec.scrape_interval_ns is not None:
            return 0
        mapping = self._page.engine
        floor_ns = int(mapping.floor_interval_s * 1e9) if mapping is not None else 0
        return max(floor_ns, self._settings.multi_process_interval_ns if self._page.multi_process else 0)

    def _check_configuration(self) -> None:
        version = self._spec.protocol_version
        if version is not None and version != PROTOCOL_VERSION:
            text = "the endpoint names another version of the model server protocol than is read here"
            event(_logger, "warning", text, endpoint=self._spec.address, named=version, read=PROTOCOL_VERSION)

    def _check_page(self, signals: Signals) -> None:
        mapping = self._page.engine
        if mapping is None:
            return
        for finding in findings(
            mapping, signals,
            interval_ns=max(self._base_ns, self._floor_ns), asked_ns=self._base_ns,
            stale_after_ns=self._settings.stale_after_ns,
        ):  # fmt: skip
            if self._once.changed(finding, True):
                event(_logger, "warning", finding, endpoint=self._spec.address, engine=mapping.name)

    def _add_slow_knowledge(self, signals: Signals, orca: str | None) -> None:
        models = self._beside.models
        if models is not None:
            signals.models, signals.adapters = models.names, models.adapters
            if signals.max_model_len is None:
                signals.max_model_len = models.max_model_len
        if orca:
            for name, value in parse_orca(orca).items():
                field = _ORCA_FIELDS.get(name)
                if field is not None and value >= 0 and getattr(signals, field) is None:
                    setattr(signals, field, value)


def _end(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)

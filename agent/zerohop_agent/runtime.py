"""The middle of the agent: sources say which endpoints there are, readers how they are; a publish makes a snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from zerohop_agent.adapters import AdapterTable
from zerohop_agent.cold_map import ColdMap
from zerohop_agent.endpoints import EndpointSet, EndpointSpec
from zerohop_agent.latches import Bounds, latch, stale_after_ns
from zerohop_agent.merge import Merged, merge
from zerohop_agent.node_view import NodeView
from zerohop_agent.readers import Cells, MakeReader, Readers
from zerohop_agent.rows import EndpointColumns, EndpointRow
from zerohop_agent.signals import Signals, SourceError
from zerohop_process.log import OncePerChange, event, get
from zerohop_snapshot.errors import ColdTooLarge
from zerohop_snapshot.layout import Flag, UnhealthyReason
from zerohop_snapshot.writer import SnapshotWriter

_logger = get("agent.runtime")
#: An engine's cell is looked at each interval for so long after its last step; an idle one with each publish.
_POLL_AFTER_STEP_NS = 1_000_000_000
_USED, _STALE = int(Flag.USED), int(Flag.STALE)


class Runtime:
    """Owns rows and readers. Everything runs on one event loop; nothing here blocks or locks."""

    def __init__(
        self,
        writer: SnapshotWriter,
        make_reader: MakeReader,
        *,
        node: str,
        bounds: Bounds,
        scrape_interval_ns: int,
        expected_sources: frozenset[str] = frozenset(),
        cells: Cells | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.writer = writer
        self.bounds = bounds
        self.rows: dict[str, EndpointRow] = {}
        self._columns = EndpointColumns(writer.endpoints)
        self.view = NodeView(writer, self._touch)
        self.cold = ColdMap(node, writer.cold)
        self.adapters = AdapterTable(names=self.cold.inherited_adapters)
        #: Called after each change that readers of the snapshot shall see soon.
        self.on_change: Callable[[], None] = lambda: None
        self.plugin_live = False
        self._clock = clock
        self._scrape_interval_ns = scrape_interval_ns
        self._silent_sources = set(expected_sources)
        self._inherited = True
        self._cells = cells
        self._sets: dict[str, EndpointSet] = {}
        self._merged = Merged({}, ())
        self._refused: set[str] = set()
        self._readers = Readers(make_reader, self._read, self._failed)
        self._cold_stale = True
        self._cold_version = (-1, -1)
        self._gpu_readings = -1
        self._check_ages_ns = 0
        self._changed = False
        self._once = OncePerChange()

    # What sources and readers call.

    def apply(self, source: str, endpoints: EndpointSet) -> None:
        """Take over all that `source` knows now. Rows and readers follow at once."""
        self._sets[source] = endpoints
        self._silent_sources.discard(source)
        self._merged = merge(self._sets)
        for address, name in self._merged.left_out:
            text = "two endpoints have one address; the second is left out"
            self._once.log(_logger, "warning", ("address", address), name, text, address=address, name=name)
        self._reconcile()

    async def close(self) -> None:
        """Stop every reader."""
        await self._readers.close()

    @property
    def refused_count(self) -> int:
        """Endpoints that have no row because the table is full."""
        return len(self._refused)

    # What the publisher calls.

    def prepare(self, now_ns: int) -> bool:
        """Bring everything derived up to date: engine cells, GPU conditions, ages, latches, the cold map.

        Returns True when something changed that `on_change` has not told.
        """
        self._changed = False
        if self._cells is not None:
            self._read_cells(now_ns)
        if self.view.readings != self._gpu_readings:
            self._gpu_readings = self.view.readings
            for row in self.rows.values():
                if row.spec.gpus:
                    self.view.apply(row, self.writer.endpoints)
                    self._latch(row, now_ns)
        if now_ns >= self._check_ages_ns:
            self._check_ages(now_ns)
        version = (self.adapters.version, self.view.version)
        if self._cold_stale or version != self._cold_version:
            self._write_cold(version)
            self._changed = True
        return self._changed

    # From here on: how.

    def _touch(self) -> None:
        self.on_change()

    def _reconcile(self) -> None:
        wanted = self._merged.endpoints
        gone = [key for key in self.rows if key not in wanted]
        for key in gone:
            self._remove(key)
        if gone:
            self._refused.clear()
        self._refused &= wanted.keys()
        self.cold.set_pools(self._merged.pools)
        self._place(wanted)
        if self._inherited and not self._silent_sources and self._drop_inherited():
            again, self._refused = self._refused, set()
            self._place({key: wanted[key] for key in again})
        refused = len(self._refused)
        if self._once.changed("full", refused) and refused:
            capacity = self.writer.endpoints.capacity
            text = "the endpoint table is full; raise --endpoint-capacity"
            event(_logger, "error", text, refused=refused, capacity=capacity)
        self._cold_stale = True
        self._touch()

    def _place(self, wanted: Mapping[str, EndpointSpec]) -> None:
        """Give each endpoint its row and its reader, and write what its source says of it."""
        now_ns = self._clock()
        table = self.writer.endpoints
        for key, spec in wanted.items():
            row = self.rows.get(key)
            if row is None:
                row = self._add(spec) if key not in self._refused else None
                if row is None:
                    continue
            elif row.spec != spec:
                self._change(row, spec)
            table.set(row.row, "pools", self.cold.pool_word(spec.pools))
            table.set(row.row, "origin", self.cold.origin(spec.origin))
            self.view.apply(row, table)
            self._latch(row, now_ns)

    def _drop_inherited(self) -> int:
        self._inherited = False
        dropped = self.writer.drop_inherited()
        self.cold.drop_inherited()
        self.cold.set_pools(self._merged.pools)
        for row in self.rows.values():
            self.writer.endpoints.set(row.row, "pools", self.cold.pool_word(row.spec.pools))
        if dropped:
            event(_logger, "info", "endpoints of the previous run are gone", count=dropped)
        return dropped

    def _add(self, spec: EndpointSpec) -> EndpointRow | None:
        index = self.writer.add_endpoint(spec.key)
        if index is None:
            self._refused.add(spec.key)
            return None
        row = EndpointRow(spec, index, self._columns, self.adapters)
        row.interval_ns = spec.scrape_interval_ns or self._scrape_interval_ns
        self.rows[spec.key] = row
        event(_logger, "info", "endpoint added", address=spec.address, name=spec.name, row=index)
        self._readers.start(spec)
        return row

    def _change(self, row: EndpointRow, spec: EndpointSpec) -> None:
        before, row.spec = row.spec, spec
        if before.draining != spec.draining:
            text = "endpoint drains" if spec.draining else "endpoint takes requests again"
            event(_logger, "info", text, address=spec.address, name=spec.name)
        if spec.address != before.address:
            row.forget()
        if not spec.same_reader(before):
            self._readers.stop(spec.key)
            self._readers.start(spec)
            row.relaxed = False

    def _remove(self, key: str) -> None:
        row = self.rows.pop(key)
        self._readers.stop(key)
        row.close()
        self.writer.remove_endpoint(key)
        event(_logger, "info", "endpoint removed", address=row.spec.address, name=row.spec.name)

    def _current(self, spec: EndpointSpec) -> EndpointRow | None:
        """The row for a reader's call; None when the endpoint has gone or moved since the request was sent."""
        row = self.rows.get(spec.key)
        return row if row is not None and row.spec.same_reader(spec) else None

    def _read(self, spec: EndpointSpec, signals: Signals, observed_ns: int, elapsed_ns: int) -> None:
        row = self._current(spec)
        if row is None:
            return
        now_ns = self._clock()
        row.scraped(now_ns, elapsed_ns)
        reader = self._readers.of(spec.key)
        row.interval_ns = reader.interval_ns
        if reader.engine != row.engine:
            row.engine = reader.engine
            self._cold_stale = True
        self.writer.endpoints.set(row.row, "scrape_interval_s", row.interval_ns / 1e9)
        if row.take(row.scrape, signals, observed_ns):
            self._cold_stale = True
        self._latch(row, now_ns)
        self._touch()

    def _failed(self, spec: EndpointSpec, error: SourceError) -> None:
        row = self._current(spec)
        if row is None:
            return
        now_ns = self._clock()
        row.failed(error, now_ns)
        self._latch(row, now_ns)
        self._touch()

    def _read_cells(self, now_ns: int) -> None:
        assert self._cells is not None  # noqa: S101 - for the type checker
        self._cells.refresh(now_ns)
        live = False
        for row in self.rows.values():
            reading = self._cells.reading(row.spec.address)
            if reading is None:
                if row.relaxed:
                    self._relax(row, on=False)
                continue
            live = live or now_ns - reading.observed_ns < _POLL_AFTER_STEP_NS
            if reading.observed_ns > row.plugin.observed_ns:
                self._changed = True
                if row.take(row.plugin, reading.signals, reading.observed_ns):
                    self._cold_stale = True
                self._latch(row, now_ns)
            # An idle engine makes no steps and writes nothing: after one interval the page has to tell.
            active = now_ns - reading.observed_ns < (row.spec.scrape_interval_ns or self._scrape_interval_ns)
            if active != row.relaxed:
                self._relax(row, on=active)
        self.plugin_live = live

    def _relax(self, row: EndpointRow, *, on: bool) -> None:
        row.relaxed = on
        self._readers.of(row.spec.key).relax(on=on)

    def _check_ages(self, now_ns: int) -> None:
        """Latch every row anew; `_latch` works out when the next one can become stale."""
        self._check_ages_ns = now_ns + 1_000_000_000
        for row in self.rows.values():
            age_ns = now_ns - row.observed_ns
            if row.observed_ns and age_ns >= stale_after_ns(row, self.bounds) * self.bounds.forget_factor:
                row.forget()
            self._latch(row, now_ns)
        if self._inherited:
            self._age_inherited(now_ns)

    def _age_inherited(self, now_ns: int) -> None:
        """Mark rows of the previous run stale in time, while no source has named them again."""
        mine = {row.row for row in self.rows.values()}
        columns = self._columns
        for row, word in enumerate(columns.flags):
            aged = now_ns - columns.observed_ns[row] >= self.bounds.stale_ns
            if word & _USED and not word & _STALE and row not in mine and aged:
                columns.flags[row] = word | _STALE
                self._changed = True

    def _latch(self, row: EndpointRow, now_ns: int) -> None:
        expires_ns = row.observed_ns + stale_after_ns(row, self.bounds)
        stale = now_ns >= expires_ns
        if not stale and expires_ns < self._check_ages_ns:
            self._check_ages_ns = expires_ns
        words = latch(row, self.bounds, stale=stale)
        if words != row.latched:
            row.latched = words
            self._changed = True
            self.writer.endpoints.set(row.row, "flags", words[0])
            self.writer.endpoints.set(row.row, "reasons", words[1])

    def _write_cold(self, version: tuple[int, int]) -> None:
        """Write the cold map; where it does not fit, without what the servers say that they serve."""
        reason = self._set_cold(served=True)
        text = ""
        if reason:
            rest = "the old one stays" if self._set_cold(served=False) else "served models are left out"
            text = f"the cold map does not fit; {rest}"
        if self._once.changed("cold", text) and text:
            event(_logger, "error", text, reason=reason)
        self._cold_stale, self._cold_version = False, version

    def _set_cold(self, *, served: bool) -> str:
        """Returns why it does not fit; empty when it does."""
        rows = self.rows.values()
        generations = {row.row: self.writer.generation(row.row) for row in rows}
        names, boards = self.adapters.names(), self.view.boards
        try:
            self.writer.set_cold(self.cold.build(rows, generations, names, boards, served=served))
        except ColdTooLarge as error:
            return str(error)
        return ""

    def failure_counts(self) -> dict[tuple[str, UnhealthyReason], int]:
        """Failed scrapes by (address, reason)."""
        return {
            (str(row.spec.address), reason): count
            for row in self.rows.values()
            for reason, count in row.scrape_failures.items()
        }

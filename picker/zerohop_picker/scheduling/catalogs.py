"""The catalogs of models of the pools, compiled when the snapshot's names or the models file change."""

from __future__ import annotations

from collections.abc import Iterable

from zerohop_picker.models.catalog import Catalog, Resolution
from zerohop_picker.models.resources import Resources, pool_resources
from zerohop_picker.request.model import LLMRequest
from zerohop_picker.state.names import Names, same_pool
from zerohop_process import log

_LOG = log.get(__name__)


class Catalogs:
    """One catalog per pool that was asked for."""

    def __init__(self, models: Resources, start: int) -> None:
        """Use ``models`` beside what the snapshot brings; ``start`` staggers the draws of a node's workers."""
        self._models = models
        self._start = start
        self._names: Names | None = None
        self._by_pool: dict[str | None, Catalog] = {}
        self._said = log.OncePerChange()

    def set_models(self, models: Resources) -> None:
        """Use other objects from the next request on."""
        self._models = models
        self._names = None

    def resolve(self, names: Names, request: LLMRequest) -> Resolution:
        """Return what the model and the objective of ``request`` mean in its pool."""
        if names is not self._names:
            self._names = names
            older, self._by_pool = self._by_pool, {}
            for pool, before in older.items():
                self._by_pool[pool] = self._compiled(names, pool)
                self._by_pool[pool].inherit(before)
        catalog = self._by_pool.get(request.pool)
        if catalog is None:
            catalog = self._by_pool[request.pool] = self._compiled(names, request.pool)
        return catalog.resolve(request.model, request.target_model, request.objective)

    def _compiled(self, names: Names, pool: str | None) -> Catalog:
        specs = [spec for spec in names.pool_specs if pool is None or same_pool(spec["name"], pool)]
        parts: Iterable[Resources] = [self._models, *(pool_resources(spec) for spec in specs)]
        catalog = Catalog(parts, pool, self._start)
        for problem in catalog.problems:
            self._said.log(_LOG, "warning", problem, "reported", problem)
        return catalog

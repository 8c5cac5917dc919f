"""Filters that keep a request where its state is: its adapter, its session."""

from __future__ import annotations

from typing import Final

import numpy as np

from zerohop_picker.scheduling.affinity import Affinity
from zerohop_picker.scheduling.filters.compare import or_all
from zerohop_picker.scheduling.plugin import Parameter, PluginType
from zerohop_picker.scheduling.request import Request
from zerohop_picker.scheduling.scorers.adapters import is_base_model
from zerohop_picker.scheduling.scorers.session import SESSION_PARAMETERS
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.view import Mask
from zerohop_process.strict import number, within


class LoraAffinity:
    """Keeps a request where its adapter is, or is about to be.

    An engine reports adapters with requests in flight: not those that are loaded but idle, and not the one that a burst
    has just been sent to. So the endpoint that an adapter was last sent to counts as having it for a minute.
    """

    _SCOPE: Final = "adapter"
    _REMEMBERED_NS: Final = 60_000_000_000

    def __init__(self, threshold: float) -> None:
        """Stay with the adapter with probability ``threshold``."""
        self._threshold = threshold

    def __call__(self, endpoints: Endpoints, request: Request) -> Mask:
        """Keep endpoints that have the request's adapter; else those with room for one more; else all.

        With probability 1 - ``threshold`` endpoints with room are kept although others have the adapter, so that a busy
        adapter spreads. Unknown (an endpoint that reports no ``lora_max``): no room. A base model: all.
        """
        if request.model is None or is_base_model(endpoints, request.model):
            return np.ones(len(endpoints), dtype=np.bool_)
        found = endpoints.adapter(request.model)
        has = np.zeros(len(endpoints), dtype=np.bool_) if found is None else found[0] | found[1]
        if request.sessions is not None:
            row = request.sessions.row(self._SCOPE, request.model, request.view, request.now_ns)
            has |= endpoints.rows == (-1 if row is None else row)
        most, count = endpoints.column("lora_max"), np.nan_to_num(endpoints.column("lora_count"), nan=0.0)
        room = ~has & np.isfinite(most) & (count < np.nan_to_num(most, nan=0.0))
        if has.any() and not (room.any() and request.random.random() >= self._threshold):
            return has
        return or_all(room, True)

    def picked(self, request: Request, endpoints: Endpoints, row: int) -> None:
        """Remember where the adapter went."""
        if request.sessions is None or request.model is None or is_base_model(endpoints, request.model):
            return
        generation = int(endpoints.view.membership.generations[row])
        expires = request.now_ns + self._REMEMBERED_NS
        request.sessions.bind(self._SCOPE, request.model, row, generation, expires)


class SessionFilter(Affinity):
    """Keeps the session's endpoint."""

    def __call__(self, endpoints: Endpoints, request: Request) -> Mask:
        """Keep the session's endpoint alone; all when the request has no session or its endpoint is no candidate."""
        row = self.row(request)
        if row is None:
            return np.ones(len(endpoints), dtype=np.bool_)
        return or_all(endpoints.rows == row, True)


TYPES: tuple[PluginType, ...] = (
    PluginType(
        "lora-affinity-filter", "filter", LoraAffinity, reads=("lora_max", "lora_count"), lasting=True,
        parameters=(Parameter("threshold", within(number, 0, 1), 0.999, "probability of staying with the adapter"),),
    ),
    PluginType(
        "session-affinity-filter", "filter", SessionFilter, parameters=SESSION_PARAMETERS, reads=("sessions",)
    ),
)  # fmt: skip

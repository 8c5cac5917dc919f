"""The LoRA affinity scorer: prefer the endpoint that has the adapter, then one that has room for it."""

from __future__ import annotations

import numpy as np

from zerohop_picker.scheduling.plugin import PluginType, bound
from zerohop_picker.scheduling.request import Request
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.view import Floats


def lora_affinity(endpoints: Endpoints, request: Request) -> Floats:
    """Return 1 where the adapter runs, else 0.8 where fewer than max_lora run, else 0.6 where it waits, else 0.

    The adapter is the request's model after rewrites. The count is the union of running and waiting names, so one that
    is in both lists counts once (llm-d-router#2605). All equal: all the same value. Unknown where the endpoint reports
    no ``lora_max`` (no LoRA there) and the adapter is in neither list; also everywhere for a model that no endpoint has
    ever reported as an adapter but that some list as their own.
    """
    found = endpoints.adapter(request.model)
    if found is None:
        if request.model is None or is_base_model(endpoints, request.model):
            return np.full(len(endpoints), np.nan)
        return endpoints.remember("room for an adapter", _room)
    running, waiting = found
    room = endpoints.remember("room for an adapter", _room)
    # fmax: a known 0.6 beats an unknown room.
    return np.where(running, 1.0, np.where(waiting, np.fmax(room, 0.6), room))


def _room(endpoints: Endpoints) -> Floats:
    """Return 0.8 where another adapter fits, 0 where none does, NaN where the endpoint says nothing of adapters."""
    most = endpoints.column("lora_max")
    count = np.nan_to_num(endpoints.column("lora_count"), nan=0.0)
    return np.where(np.isnan(most), np.nan, (count < most) * 0.8)


def is_base_model(endpoints: Endpoints, model: str) -> bool:
    """Return whether some candidate serves ``model`` and it is not known to be an adapter.

    Engines list their adapters beside the model they adapt, so being listed alone does not tell.
    """
    if model in endpoints.view.names.known_adapters:
        return False
    models = endpoints.view.names.models
    return any(model in models[row] for row in endpoints.rows.tolist())


TYPES: tuple[PluginType, ...] = (
    PluginType("lora-affinity-scorer", "scorer", bound(lora_affinity), reads=("lora_max", "lora_count")),
)  # fmt: skip

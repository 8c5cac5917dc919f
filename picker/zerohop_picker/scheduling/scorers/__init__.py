"""Scorers: each returns a value in 0..1 per candidate, NaN where it has no opinion. One file per family."""

from __future__ import annotations

from zerohop_picker.scheduling.plugin import PluginType
from zerohop_picker.scheduling.scorers import adapters, attribute, cache, labels, load, session

TYPES: tuple[PluginType, ...] = (
    *load.TYPES,
    *cache.TYPES,
    *adapters.TYPES,
    *session.TYPES,
    *labels.TYPES,
    *attribute.TYPES,
)

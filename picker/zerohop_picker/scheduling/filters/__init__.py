"""Filters: each returns a mask of the candidates to keep, or None to keep them all. One file per family."""

from __future__ import annotations

from zerohop_picker.scheduling.filters import affinity, eligibility, labels, load, prefix
from zerohop_picker.scheduling.plugin import PluginType

TYPES: tuple[PluginType, ...] = (*eligibility.TYPES, *labels.TYPES, *load.TYPES, *prefix.TYPES, *affinity.TYPES)

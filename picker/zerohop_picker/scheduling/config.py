"""A scheduling configuration as it will run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerohop_picker.scheduling.plugin import PluginType
from zerohop_picker.state.prefixes import PrefixSettings


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin of the configuration: its name, type, every parameter's value, and the thing itself."""

    name: str
    type: PluginType
    values: Mapping[str, Any]
    instance: Any
    place: str
    #: Whether it was written down or filled in.
    configured: bool = True

    @property
    def kind(self) -> str:
        """The type's kind."""
        return self.type.kind


@dataclass(frozen=True, slots=True)
class Profile:
    """One scheduling profile: filters in order, scorers with weights, one picker."""

    name: str
    filters: tuple[Plugin, ...]
    scorers: tuple[tuple[Plugin, float], ...]
    picker: Plugin
    place: str = ""


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """A configuration as it will run. ``text`` and ``source`` are what it was read from."""

    source: str
    text: str
    plugins: Mapping[str, Plugin]
    profiles: Mapping[str, Profile]
    handler: Plugin
    detector: Plugin
    prefix: PrefixSettings
    gates: Mapping[str, bool]
    warnings: tuple[str, ...] = ()
    #: Files that plugins were read from, to be watched.
    files: tuple[Path, ...] = field(default=())

    @property
    def debug_scores(self) -> bool:
        """Whether a request may ask for its scores."""
        return self.gates["debugScores"]

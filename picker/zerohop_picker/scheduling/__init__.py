"""The scheduling framework: an EndpointPickerConfig becomes a pipeline of filters, scorers and a picker over arrays."""

from __future__ import annotations

from zerohop_picker.scheduling.assembly import assemble
from zerohop_picker.scheduling.config import PipelineConfig
from zerohop_picker.scheduling.loading import load
from zerohop_picker.scheduling.scheduler import StandardScheduler

__all__ = ["PipelineConfig", "StandardScheduler", "assemble", "load"]

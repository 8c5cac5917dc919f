"""Puts a worker's scheduler together over a shm directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from zerohop_picker.metrics import Metrics
from zerohop_picker.models.resources import Resources
from zerohop_picker.scheduling.config import PipelineConfig
from zerohop_picker.scheduling.measures import Measures
from zerohop_picker.scheduling.scheduler import StandardScheduler
from zerohop_process.errors import ConfigError
from zerohop_snapshot import PeerCells, PickerCell, SnapshotError, SnapshotReader, WriterLocked
from zerohop_snapshot.prefix import PrefixDirectory
from zerohop_snapshot.sessions import SessionTable

#: Rows for which cells and the directory have room. All workers of a node must choose alike, hence the coarse steps.
_CAPACITY_STEP: Final = 256


def assemble(
    config: PipelineConfig,
    *,
    shm_dir: Path,
    worker: str,
    metrics: Metrics | None = None,
    state_dir: Path | None = None,
    models: Resources | None = None,
) -> StandardScheduler:
    """Return the scheduler of worker ``worker``, its cell created in ``state_dir`` (default: ``shm_dir``).

    The snapshot may be absent; until it comes every request is refused. Raises: ConfigError when the worker's own files
    cannot be created.
    """
    reader = SnapshotReader(shm_dir, node=False)
    snapshot = reader.read()
    rows = 1 if snapshot is None else max(snapshot.row_stride, 1)
    capacity = -(-rows // _CAPACITY_STEP) * _CAPACITY_STEP
    own = state_dir or shm_dir
    try:
        cell = PickerCell(own, worker, capacity)
    except WriterLocked as error:
        raise ConfigError(f"{error}; give each picker a directory or a worker name of its own") from None
    except SnapshotError as error:
        hint = "" if state_dir is not None else "; if --shm-dir is read-only here, set --state-dir"
        raise ConfigError(f"{error}{hint}") from None
    try:
        directory = PrefixDirectory(own, endpoint_capacity=capacity)
        sessions = SessionTable(own)
    except SnapshotError as error:
        cell.close()
        raise ConfigError(str(error)) from None
    return StandardScheduler(
        config, reader, cell, PeerCells(own), directory, sessions, measures=Measures(metrics), models=models
    )

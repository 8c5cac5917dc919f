"""The shared-memory contract between the agent, the engines and the pickers (standard library only).

The prefix directory lives in `zerohop_snapshot.prefix` and needs numpy and xxhash; nothing else here does.
"""

from .enginecell import ENGINE_FIELDS, EngineCells, EngineCellWriter, EngineState
from .errors import ColdTooLarge, SnapshotError, WriterLocked
from .layout import (
    ENDPOINT_COLUMNS,
    GPU_COLUMNS,
    HOST_FIELDS,
    DrainReason,
    Flag,
    GpuFlag,
    SlowdownReason,
    UnhealthyReason,
    ValueSource,
)
from .pickercell import PICKER_TOTALS, PeerCell, PeerCells, PickerCell
from .reader import Snapshot, SnapshotReader
from .writer import SnapshotWriter

__all__ = [
    "ENDPOINT_COLUMNS",
    "ENGINE_FIELDS",
    "GPU_COLUMNS",
    "HOST_FIELDS",
    "PICKER_TOTALS",
    "ColdTooLarge",
    "DrainReason",
    "EngineCellWriter",
    "EngineCells",
    "EngineState",
    "Flag",
    "GpuFlag",
    "PeerCell",
    "PeerCells",
    "PickerCell",
    "SlowdownReason",
    "Snapshot",
    "SnapshotError",
    "SnapshotReader",
    "SnapshotWriter",
    "UnhealthyReason",
    "ValueSource",
    "WriterLocked",
]

"""What the child says about boards: who they are, and what was read of them. Unknown is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self


@dataclass(slots=True)
class Board:
    """A board, or one MIG instance of a board.

    `mig` is None for a board with MIG off, `{"mode": "enabled"}` for one that is cut up, and `{"parent", "gi_id",
    "mig_profile"}` for an instance. `index` is NVML's number of the (parent) board and shifts when a board disappears.
    """

    uuid: str
    name: str
    index: int
    bus_id: str
    minor: int | None = None
    mig: dict[str, Any] | None = None

    @property
    def parent_uuid(self) -> str:
        """The board that an instance is cut from; its own UUID for a board."""
        return str(self.mig["parent"]) if self.mig is not None and "parent" in self.mig else self.uuid

    @property
    def is_instance(self) -> bool:
        """True for a MIG instance."""
        return self.parent_uuid != self.uuid

    def as_map(self) -> dict[str, Any]:
        """For the wire and for the snapshot's cold map."""
        return asdict(self)


@dataclass(slots=True)
class GpuReading:
    """One board at one moment. Ratios 0..1; moments CLOCK_MONOTONIC ns, 0 = never."""

    # Read at every tick.
    observed_ns: int = 0
    lost: bool = False
    reset_required: bool = False
    unified_memory: bool = False
    utilization: float | None = None
    memory_utilization: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    memory_reserved_bytes: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None
    clock_event_reasons: int | None = None
    # Read at slow ticks, and right after an XID.
    slow_observed_ns: int = 0
    power_limit_watts: float | None = None
    memory_temperature_celsius: float | None = None
    sm_clock_max_hertz: float | None = None
    memory_clock_max_hertz: float | None = None
    ecc_corrected_total: float | None = None
    ecc_uncorrected_total: float | None = None
    remapped_rows_correctable: float | None = None
    remapped_rows_uncorrectable: float | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages: float | None = None
    retired_pending: bool | None = None
    nvlink_up: float | None = None
    nvlink_down: float | None = None
    nvlink_rx_bytes: float | None = None
    nvlink_tx_bytes: float | None = None
    pcie_replay_total: float | None = None
    energy_joules: float | None = None
    processes: float | None = None
    recovery_action: int | None = None

    def as_map(self) -> dict[str, Any]:
        """Only what is known, for the wire."""
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}

    @classmethod
    def from_map(cls, values: Mapping[str, Any]) -> Self:
        """The reading again; names of a newer child are ignored."""
        return cls(**{name: value for name, value in values.items() if name in FIELDS})


FIELDS: tuple[str, ...] = tuple(field.name for field in fields(GpuReading))

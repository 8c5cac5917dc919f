"""The layout of `node.snap`, stated once: every column, its type, its unit and how unknown is written.

`proto/snapshot.h` states the same in C and a test compares the two field by field. Change something here and
`LAYOUT_VERSION` moves, the golden bytes in tests/golden get a new file, and readers of the old version say so.

    node.snap
      0      FileHeader        256 bytes (header.py; the sequence word is at 128)
      256    row table         endpoint_capacity x 32 bytes, used by the writer alone
      ...    3 hot slots       each: SlotHeader (128 bytes), endpoint block, node block
      ...    3 cold slots      each: cold_capacity_bytes, one msgpack map

Sequence s lies in hot slot s % 3 and cold generation g in cold slot g % 3. The endpoint block holds the columns of
ENDPOINT_COLUMNS one after another, each `row_stride` values long (rows in use, rounded up to 8, so that a small node
copies little). The node block holds GPU_COLUMNS, each `gpu_capacity` long, then HOST_FIELDS, one value each.

Unknown: NaN in a float column, 0 in a time column ("never"), a cleared bit in a flag column. Never a plain 0.
Times are CLOCK_MONOTONIC nanoseconds; they mean nothing after a reboot, which the boot id in the header tells.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Literal

__all__ = [
    "ADAPTER_SLOTS",
    "ENDPOINT_COLUMNS",
    "ENDPOINT_ROW_BYTES",
    "GPU_COLUMNS",
    "GPU_ROW_BYTES",
    "HOST_BYTES",
    "HOST_FIELDS",
    "LAYOUT_VERSION",
    "ROW_ALIGNMENT",
    "SLOT_COUNT",
    "Column",
    "DrainReason",
    "Flag",
    "GpuFlag",
    "SlowdownReason",
    "TypeCode",
    "UnhealthyReason",
    "ValueSource",
    "column_offsets",
    "reason_bytes",
    "reasons_word",
]

LAYOUT_VERSION: Final = 1
SLOT_COUNT: Final = 3
#: rows of the endpoint block are a multiple of this, so that each column starts on an 8-byte boundary
ROW_ALIGNMENT: Final = 8
#: adapters that can be in flight on one node at a time and still be told apart in the hot columns
ADAPTER_SLOTS: Final = 128

TypeCode = Literal["Q", "I", "f", "d"]
SIZE: Final[dict[str, int]] = {"Q": 8, "I": 4, "f": 4, "d": 8}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `code` is the little-endian struct type (Q u64, I u32, f float32, d float64)."""

    name: str
    code: TypeCode
    unit: str
    meaning: str
    unknown: str


def _time(name: str, meaning: str) -> Column:
    return Column(name, "Q", "ns", meaning, "0 = never")


def _bits(name: str, code: Literal["Q", "I"], meaning: str) -> Column:
    return Column(name, code, "bits", meaning, "bit cleared")


def _value(name: str, code: Literal["f", "d"], unit: str, meaning: str) -> Column:
    return Column(name, code, unit, meaning, "NaN")


# The writer of every column is the agent. 8-byte columns come first: alignment holds for any row_stride.
ENDPOINT_COLUMNS: Final[tuple[Column, ...]] = (
    _time("observed_ns", "moment that waiting, running and kv_cache_usage describe"),
    _time("progress_ns", "last time that a token or step counter moved"),
    _time("detail_observed_ns", "moment that counters, latencies and adapters describe"),
    _bits("pools", "Q", "bit i: the endpoint belongs to pool i of the cold map's `pools`"),
    _bits("lora_running_0", "Q", "bit i: adapter slot i has a running request"),
    _bits("lora_running_1", "Q", "bit i: adapter slot 64 + i has a running request"),
    _bits("lora_waiting_0", "Q", "bit i: adapter slot i has a waiting request"),
    _bits("lora_waiting_1", "Q", "bit i: adapter slot 64 + i has a waiting request"),
    _value("prompt_tokens", "d", "tokens", "prompt tokens since the engine started"),
    _value("generation_tokens", "d", "tokens", "generated tokens since the engine started"),
    _value("prefix_queries", "d", "tokens", "tokens looked up in the prefix cache"),
    _value("prefix_hits", "d", "tokens", "tokens found in the prefix cache"),
    _value("preemptions", "d", "1", "preemptions since the engine started"),
    _value("steps", "d", "1", "engine steps since the engine started"),
    Column("generation", "I", "1", "life of this row: a reused row has a new one", "0 = row never used"),
    _bits("flags", "I", "Flag"),
    Column("reasons", "I", "bytes", "byte 0 DrainReason, 1 UnhealthyReason, 2 SlowdownReason, 3 ValueSource", "0"),
    Column("origin", "I", "index", "0 = this node, else index into the cold map's `origins`", "0"),
    _value("waiting", "f", "requests", "requests queued in the model server"),
    _value("running", "f", "requests", "requests in the engine's batch"),
    _value("kv_cache_usage", "f", "ratio 0..1", "share of the KV cache in use"),
    _value("slowdown", "f", "factor >= 1", "1 = full speed; 2 = the GPU runs at half of its clock"),
    _value("lora_count", "f", "adapters", "adapters with a request in flight"),
    _value("lora_max", "f", "adapters", "adapters that fit at a time"),
    _value("kv_capacity_tokens", "f", "tokens", "tokens that fit into the KV cache"),
    _value("block_size", "f", "tokens", "tokens per KV cache block"),
    _value("max_model_len", "f", "tokens", "longest context that the server accepts"),
    _value("prompt_tokens_rate", "f", "tokens/s", "prompt tokens per second, lately"),
    _value("generation_tokens_rate", "f", "tokens/s", "generated tokens per second, lately"),
    _value("ttft_mean_s", "f", "s", "mean time to first token of the last requests"),
    _value("itl_mean_s", "f", "s", "mean inter-token latency of the last tokens"),
    _value("scrape_interval_s", "f", "s", "interval at which the agent reads this endpoint now"),
    _value("gpu_utilization", "f", "ratio 0..1", "mean utilisation of the endpoint's GPUs"),
    _value("gpu_memory", "f", "ratio 0..1", "largest memory share in use among the endpoint's GPUs"),
)

GPU_COLUMNS: Final[tuple[Column, ...]] = (
    _time("observed_ns", "moment that utilisation, memory, power, temperature and clocks describe"),
    _time("slow_observed_ns", "moment that the slowly read values describe (ECC, rows, links, energy)"),
    _bits("clock_event_reasons", "Q", "NVML clocks event (throttle) reasons"),
    _value("utilization", "d", "ratio 0..1", "share of time in which a kernel ran"),
    _value("memory_utilization", "d", "ratio 0..1", "share of time in which memory was read or written"),
    _value("memory_used_bytes", "d", "bytes", "memory in use"),
    _value("memory_total_bytes", "d", "bytes", "memory of the board"),
    _value("memory_reserved_bytes", "d", "bytes", "memory held by the driver"),
    _value("power_watts", "d", "W", "power draw"),
    _value("power_limit_watts", "d", "W", "enforced power limit"),
    _value("temperature_celsius", "d", "degrees Celsius", "GPU temperature"),
    _value("memory_temperature_celsius", "d", "degrees Celsius", "memory temperature"),
    _value("sm_clock_hertz", "d", "Hz", "SM clock now"),
    _value("memory_clock_hertz", "d", "Hz", "memory clock now"),
    _value("sm_clock_max_hertz", "d", "Hz", "highest SM clock"),
    _value("memory_clock_max_hertz", "d", "Hz", "highest memory clock"),
    _value("ecc_corrected_total", "d", "errors", "corrected ECC errors, volatile"),
    _value("ecc_uncorrected_total", "d", "errors", "uncorrected ECC errors, volatile"),
    _value("remapped_rows_correctable", "d", "rows", "rows remapped for corrected errors"),
    _value("remapped_rows_uncorrectable", "d", "rows", "rows remapped for uncorrected errors"),
    _value("retired_pages", "d", "pages", "retired pages (before Ampere)"),
    _value("nvlink_up", "d", "links", "NVLinks that are active"),
    _value("nvlink_down", "d", "links", "NVLinks that are not"),
    _value("nvlink_rx_bytes", "d", "bytes", "received over NVLink"),
    _value("nvlink_tx_bytes", "d", "bytes", "sent over NVLink"),
    _value("pcie_replay_total", "d", "1", "PCIe replays"),
    _value("energy_joules", "d", "J", "energy since the driver was loaded"),
    _value("processes", "d", "1", "compute processes"),
    _bits("flags", "I", "GpuFlag"),
    Column("xid_last", "I", "code", "last XID error", "0 = none seen"),
    Column("xid_count", "I", "1", "XID errors since the agent started", "0 = none seen"),
    Column("reserved", "I", "-", "keeps the row a multiple of 8 bytes", "0"),
)

HOST_FIELDS: Final[tuple[Column, ...]] = (
    _time("observed_ns", "moment that the host's values describe"),
    _value("cpu_ratio", "d", "ratio 0..1", "share of all cores in use"),
    _value("load1", "d", "1", "load average over 1 minute"),
    _value("load5", "d", "1", "load average over 5 minutes"),
    _value("load15", "d", "1", "load average over 15 minutes"),
    _value("memory_total_bytes", "d", "bytes", "memory of the host"),
    _value("memory_available_bytes", "d", "bytes", "memory that can be given out without swapping"),
    _value("swap_used_bytes", "d", "bytes", "swap in use"),
    _value("pressure_cpu_some_avg10", "d", "ratio 0..1", "PSI, cpu some, 10 s"),
    _value("pressure_memory_some_avg10", "d", "ratio 0..1", "PSI, memory some, 10 s"),
    _value("pressure_memory_full_avg10", "d", "ratio 0..1", "PSI, memory full, 10 s"),
    _value("pressure_io_some_avg10", "d", "ratio 0..1", "PSI, io some, 10 s"),
    _value("pressure_io_full_avg10", "d", "ratio 0..1", "PSI, io full, 10 s"),
    _value("network_rx_bytes", "d", "bytes", "received on all interfaces but loopback"),
    _value("network_tx_bytes", "d", "bytes", "sent on all interfaces but loopback"),
    _value("disk_read_bytes", "d", "bytes", "read from disks"),
    _value("disk_write_bytes", "d", "bytes", "written to disks"),
    _value("boot_time_seconds", "d", "s", "Unix time of the boot"),
)


class Flag(enum.IntFlag):
    """Bits of an endpoint's `flags`, latched by the agent so that a decision tests one bit."""

    USED = 1
    DRAIN = 2
    UNHEALTHY = 4
    STALE = 8
    SLEEPING = 16
    OVERLOADED = 32
    STUCK = 64
    PLUGIN = 128
    SLOWED = 256


class DrainReason(enum.IntEnum):
    """Why an endpoint takes no new request."""

    NONE = 0
    CONFIG = 1
    POD_TERMINATING = 2
    GPU_LOST = 3
    ECC_UNCORRECTABLE = 4
    ROW_REMAP_FAILURE = 5
    XID = 6
    ADMIN = 7


class UnhealthyReason(enum.IntEnum):
    """Why an endpoint's values cannot be read."""

    NONE = 0
    NEVER_SCRAPED = 1
    REFUSED = 2
    TIMEOUT = 3
    HTTP_STATUS = 4
    NOT_METRICS = 5
    ENGINE_UNKNOWN = 6
    DEAD = 7
    RESET = 8
    TOO_LARGE = 9


class SlowdownReason(enum.IntEnum):
    """Why an endpoint's GPU runs below its clock."""

    NONE = 0
    THERMAL = 1
    POWER_BRAKE = 2
    POWER_CAP = 3
    HW_SLOWDOWN = 4


class ValueSource(enum.IntEnum):
    """Where an endpoint's load values came from."""

    NONE = 0
    SCRAPE = 1
    PLUGIN = 2
    BUS = 3


class GpuFlag(enum.IntFlag):
    """Bits of a GPU's `flags`."""

    USED = 1
    LOST = 2
    MIG = 4
    UNIFIED_MEMORY = 8
    REMAP_PENDING = 16
    REMAP_FAILED = 32
    RETIRED_PENDING = 64
    RESET_REQUIRED = 128
    THROTTLED = 256
    #: endpoints on it are drained, or would be if the agent did not only observe; likewise slowed
    DRAIN = 512
    SLOWED = 1024


def row_bytes(columns: tuple[Column, ...]) -> int:
    """Bytes that one row takes over all columns."""
    return sum(SIZE[column.code] for column in columns)


ENDPOINT_ROW_BYTES: Final = row_bytes(ENDPOINT_COLUMNS)
GPU_ROW_BYTES: Final = row_bytes(GPU_COLUMNS)
HOST_BYTES: Final = row_bytes(HOST_FIELDS)


def column_offsets(columns: tuple[Column, ...], stride: int) -> dict[str, tuple[int, TypeCode]]:
    """Byte offset and type of each column in a block whose columns are `stride` values long."""
    offsets: dict[str, tuple[int, TypeCode]] = {}
    offset = 0
    for column in columns:
        offsets[column.name] = (offset, column.code)
        offset += SIZE[column.code] * stride
    return offsets


def reasons_word(drain: int = 0, unhealthy: int = 0, slowdown: int = 0, source: int = 0) -> int:
    """The `reasons` column's value for four reason codes (each 0..255)."""
    return drain | unhealthy << 8 | slowdown << 16 | source << 24


def reason_bytes(word: int) -> tuple[int, int, int, int]:
    """The codes (drain, unhealthy, slowdown, source) in a `reasons` value."""
    return word & 255, word >> 8 & 255, word >> 16 & 255, word >> 24 & 255

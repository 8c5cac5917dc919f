"""Values as NVML gives them, made into numbers or None."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml

#: What the driver and its tools put for "no value", in 32 and 64 bits.
_BLANKS = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFE, 0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 0x7FFFFFFFFFFFFFF2})


def known(value: Any) -> float | None:
    """The number, or None when it is missing or one of the values that stand for "none"."""
    if value is None:
        return None
    if value in _BLANKS or value >= 0x7FFFFFFFFFFFFFF0:
        return None
    return float(value)


def percent(value: Any) -> float | None:
    """A percentage as a ratio 0..1; None for anything else."""
    number = known(value)
    return number / 100 if number is not None and 0 <= number <= 100 else None


def field_number(value: Any) -> float | None:
    """The number of an `nvmlFieldValue_t`, by its type."""
    union = value.value
    kinds = {
        pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
    }
    member = kinds.get(value.valueType)
    return getattr(union, member) if member is not None else None


def host_memory() -> tuple[float | None, float | None]:
    """Total and used bytes of the host's memory, which boards with unified memory share."""
    values = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            values[name] = float(rest.split()[0]) * 1024
    total, available = values.get("MemTotal"), values.get("MemAvailable")
    return total, total - available if total is not None and available is not None else None

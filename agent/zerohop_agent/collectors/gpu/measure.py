"""Reads one board: which calls, in which units, and what to ask where a call is missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pynvml

from zerohop_agent.collectors.gpu.nvml import Nvml
from zerohop_agent.collectors.gpu.reading import Board, GpuReading
from zerohop_agent.collectors.gpu.values import field_number, host_memory, known, percent

_NVLINK_LINKS = 36
_ALL_LINKS = 0xFFFFFFFF
_MEMORY_TEMPERATURE = 82
_NVLINK_TX_KIB = 138
_NVLINK_RX_KIB = 139
_POWER_INSTANT = 186
_RECOVERY_ACTION = 230


class BoardReader:
    """One board or MIG instance. Raises from both readings: BoardLostError, ResetRequiredError, BoardsChangedError."""

    def __init__(self, nvml: Nvml, board: Board) -> None:
        self._nvml = nvml
        self._board = board
        self._handle = nvml.handle(board.uuid)

    def read_fast(self, reading: GpuReading) -> None:
        """Load, memory, power, heat and clocks. Raises: BoardLostError, BoardsChangedError."""
        reading.reset_required = False
        if not self._board.is_instance:
            self._read_load(reading)
        self._read_memory(reading)
        reading.observed_ns = time.monotonic_ns()

    def _read_load(self, reading: GpuReading) -> None:
        use = self._ask(pynvml.nvmlDeviceGetUtilizationRates)
        reading.utilization = percent(use.gpu) if use is not None else None
        reading.memory_utilization = percent(use.memory) if use is not None else None
        power_mw = known(self._ask(pynvml.nvmlDeviceGetPowerUsage))
        if power_mw is None:
            power_mw = self._field(_POWER_INSTANT)
        reading.power_watts = power_mw / 1e3 if power_mw is not None else None
        heat = self._ask(pynvml.nvmlDeviceGetTemperatureV, pynvml.NVML_TEMPERATURE_GPU)
        if heat is None:  # the wrapper does not fall back by itself; the old call goes with CUDA 14
            heat = self._ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU)
        reading.temperature_celsius = heat if (heat := known(heat)) is not None and -100 < heat < 300 else None
        reading.sm_clock_hertz = self._clock(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM)
        reading.memory_clock_hertz = self._clock(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM)
        reasons = self._ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
        if reasons is None:  # the name until about R535, with the same bits
            reasons = self._ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        reading.clock_event_reasons = int(reasons) if known(reasons) is not None else None

    def _read_memory(self, reading: GpuReading) -> None:
        memory = self._ask(pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2, name="memory_v2")
        reserved = known(memory.reserved) if memory is not None else None
        if memory is None:
            memory = self._ask(pynvml.nvmlDeviceGetMemoryInfo, name="memory_v1")
        total = known(memory.total) if memory is not None else None
        reading.unified_memory = self._is_unified(memory, total)
        if reading.unified_memory:
            total, used = host_memory()
            reserved = None
        else:
            used = known(memory.used) if memory is not None else None
        reading.memory_total_bytes, reading.memory_used_bytes, reading.memory_reserved_bytes = total, used, reserved

    def _is_unified(self, memory: Any, total: float | None) -> bool:
        """Boards that share the host's memory (GB10, Thor) refuse both calls, or say that they have none."""
        if self._board.mig is not None:
            return False
        if memory is not None:
            return total == 0
        return self._nvml.not_supported(self._board, "memory_v1")

    def read_slow(self, reading: GpuReading) -> None:
        """Limits, errors, links, energy and processes. Raises: BoardLostError, BoardsChangedError."""
        processes = self._ask(pynvml.nvmlDeviceGetComputeRunningProcesses)
        reading.processes = float(len(processes)) if processes is not None else None
        if not self._board.is_instance:
            self._read_limits(reading)
            self._read_errors(reading)
            self._read_links(reading)
            self._nvml.check_mig(self._board)
        reading.slow_observed_ns = time.monotonic_ns()

    def _read_limits(self, reading: GpuReading) -> None:
        limit_mw = known(self._ask(pynvml.nvmlDeviceGetEnforcedPowerLimit))
        reading.power_limit_watts = limit_mw / 1e3 if limit_mw is not None else None
        reading.sm_clock_max_hertz = self._clock(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM)
        reading.memory_clock_max_hertz = self._clock(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM)
        energy_mj = known(self._ask(pynvml.nvmlDeviceGetTotalEnergyConsumption))
        reading.energy_joules = energy_mj / 1e3 if energy_mj is not None else None
        heat = self._field(_MEMORY_TEMPERATURE)
        reading.memory_temperature_celsius = heat if heat is not None and 0 < heat < 300 else None
        action = self._field(_RECOVERY_ACTION)
        reading.recovery_action = int(action) if action is not None else None

    def _read_errors(self, reading: GpuReading) -> None:
        volatile = pynvml.NVML_VOLATILE_ECC
        ecc = pynvml.nvmlDeviceGetTotalEccErrors
        corrected, uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        reading.ecc_corrected_total = known(self._ask(ecc, corrected, volatile))
        reading.ecc_uncorrected_total = known(self._ask(ecc, uncorrected, volatile))
        rows = self._ask(pynvml.nvmlDeviceGetRemappedRows)
        if rows is not None:
            reading.remapped_rows_correctable, reading.remapped_rows_uncorrectable = known(rows[0]), known(rows[1])
            reading.remap_pending, reading.remap_failed = bool(rows[2]), bool(rows[3])
        else:  # before Ampere pages were retired instead
            retired = [self._ask(pynvml.nvmlDeviceGetRetiredPages, cause, name=f"retired_{cause}") for cause in (0, 1)]
            counts = [len(pages) for pages in retired if pages is not None]
            reading.retired_pages = float(sum(counts)) if counts else None
            pending = self._ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus)
            reading.retired_pending = bool(pending) if pending is not None else None
        reading.pcie_replay_total = known(self._ask(pynvml.nvmlDeviceGetPcieReplayCounter))

    def _read_links(self, reading: GpuReading) -> None:
        up = down = 0
        for link in range(_NVLINK_LINKS):
            state = self._ask(pynvml.nvmlDeviceGetNvLinkState, link, name=f"nvlink_{link}")
            if state is None:
                break
            up, down = up + (state == 1), down + (state != 1)
        reading.nvlink_up, reading.nvlink_down = (float(up), float(down)) if up + down else (None, None)
        rx = self._field(_NVLINK_RX_KIB, _ALL_LINKS)
        tx = self._field(_NVLINK_TX_KIB, _ALL_LINKS)
        reading.nvlink_rx_bytes = rx * 1024 if rx is not None else None
        reading.nvlink_tx_bytes = tx * 1024 if tx is not None else None

    def _clock(self, call: Callable[..., Any], kind: int) -> float | None:
        mhz = known(self._ask(call, kind, name=f"{call.__name__}_{kind}"))
        return mhz * 1e6 if mhz is not None else None

    def _field(self, field: int, scope: int = 0) -> float | None:
        name = f"field_{field}"
        values = self._ask(pynvml.nvmlDeviceGetFieldValues, [(field, scope)], name=name)
        if values is None:
            return None
        (value,) = values
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            self._nvml.note_refusal(self._board, name, value.nvmlReturn)
            return None
        return known(field_number(value))

    def _ask(self, call: Callable[..., Any], *arguments: Any, name: str = "") -> Any:
        return self._nvml.ask(self._board, call, self._handle, *arguments, name=name)

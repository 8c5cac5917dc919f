"""The driver as NVML shows it, through nvidia-ml-py: the only module that imports pynvml.

Each call may be unsupported on a board, in a MIG mode, or in a driver's version: the answer "no" is kept per call,
board and MIG mode, so that it is asked once. Handles are kept too (looking one up can be expensive) and boards are
known by UUID, never by index: indices shift when a board disappears.

Source: nvml.h (https://docs.nvidia.com/deploy/nvml-api/); nvidia-ml-py's pynvml.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from zerohop_agent.collectors.gpu.reading import Board, GpuReading

_NVLINK_LINKS = 36
_ALL_LINKS = 0xFFFFFFFF
_MEMORY_TEMPERATURE = 82
_NVLINK_TX_KIB = 138
_NVLINK_RX_KIB = 139
_POWER_INSTANT = 186
_RECOVERY_ACTION = 230

_UNSUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    }
)
_DRIVER_GONE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    }
)
_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND})
_STALE_HANDLE = frozenset({pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND})


class DriverError(Exception):
    """NVML as a whole does not work; `code` is the nvmlReturn_t."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class BoardLostError(Exception):
    """The driver no longer reaches the board."""


class ResetRequiredError(Exception):
    """The board must be reset before it can be used again."""


class BoardsChangedError(Exception):
    """A handle no longer fits: MIG was set anew, or a board is gone. Look at everything again."""


class Nvml:
    """NVML from init to shutdown. Raises: DriverError from any method when the driver is gone or was replaced."""

    def __init__(self) -> None:
        _refuse_old_wrapper()
        self._call_driver(pynvml.nvmlInit)
        self._handles: dict[str, Any] = {}
        self._no: set[tuple[str, bool, str]] = set()
        #: Calls that were answered, and that failed without a reason, since the last `check_access`.
        self.answers = 0
        self.unknown_errors = 0
        self.driver_version = self._ask_once(pynvml.nvmlSystemGetDriverVersion) or ""
        self.boards = self._find_boards()

    def close(self) -> None:
        """Give every handle back, so that the driver can be unloaded and MIG be switched."""
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def check_access(self) -> None:
        """Call once per tick. Raises: DriverError when since the last time every call failed without a reason.

        So it is when a container has lost its access to the devices (`systemctl daemon-reload` on cgroup v2).
        """
        answers, unknown = self.answers, self.unknown_errors
        self.answers = self.unknown_errors = 0
        if unknown and not answers:
            raise DriverError(pynvml.NVML_ERROR_UNKNOWN, "every call fails with Unknown Error")

    # -- boards --------------------------------------------------------------------------------------------------------

    def _find_boards(self) -> list[Board]:
        boards: list[Board] = []
        instances: list[Board] = []
        for index in range(self._call_driver(pynvml.nvmlDeviceGetCount)):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                board = self._board(handle, index)
            except pynvml.NVMLError as error:
                if error.value in _DRIVER_GONE:
                    raise _driver_error(error) from None
                continue  # a board that is lost at init has no handle; the agent remembers its UUID
            boards.append(board)
            if board.mig is not None:
                instances += self._instances(handle, board)
        return boards + instances

    def _board(self, handle: Any, index: int) -> Board:
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        self._handles[uuid] = handle
        mode = self._ask_once(pynvml.nvmlDeviceGetMigMode, handle)
        return Board(
            uuid=uuid,
            name=self._ask_once(pynvml.nvmlDeviceGetName, handle) or "",
            index=index,
            bus_id=_text(getattr(self._ask_once(pynvml.nvmlDeviceGetPciInfo, handle), "busId", "")),
            minor=self._ask_once(pynvml.nvmlDeviceGetMinorNumber, handle),
            mig={"mode": "enabled"} if mode is not None and mode[0] == 1 else None,
        )

    def _instances(self, handle: Any, parent: Board) -> list[Board]:
        found = []
        for slot in range(self._ask_once(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            instance = self._ask_once(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
            uuid = self._ask_once(pynvml.nvmlDeviceGetUUID, instance) if instance is not None else None
            if uuid is None:
                continue
            self._handles[uuid] = instance
            name = self._ask_once(pynvml.nvmlDeviceGetName, instance) or parent.name
            mig = {
                "parent": parent.uuid,
                "gi_id": self._ask_once(pynvml.nvmlDeviceGetGpuInstanceId, instance),
                "profile": name.rpartition("MIG ")[2] if "MIG " in name else None,
            }
            found.append(Board(uuid, name, parent.index, parent.bus_id, parent.minor, mig))
        return found

    # -- reading -------------------------------------------------------------------------------------------------------

    def read_fast(self, board: Board, reading: GpuReading) -> None:
        """Load, memory, power, heat and clocks. Raises: BoardLostError, BoardsChangedError."""
        handle = self._handles[board.uuid]
        reading.reset_required = False
        if not board.is_instance:
            self._read_load(board, handle, reading)
        self._read_memory(board, handle, reading)
        reading.observed_ns = time.monotonic_ns()

    def _read_load(self, board: Board, handle: Any, reading: GpuReading) -> None:
        use = self._ask(board, pynvml.nvmlDeviceGetUtilizationRates, handle)
        reading.utilization = _percent(use.gpu) if use is not None else None
        reading.memory_utilization = _percent(use.memory) if use is not None else None
        power_mw = _known(self._ask(board, pynvml.nvmlDeviceGetPowerUsage, handle))
        if power_mw is None:
            power_mw = self._field(board, handle, _POWER_INSTANT)
        reading.power_watts = power_mw / 1e3 if power_mw is not None else None
        heat = self._ask(board, pynvml.nvmlDeviceGetTemperatureV, handle, pynvml.NVML_TEMPERATURE_GPU)
        if heat is None:  # the wrapper does not fall back by itself; the old call goes with CUDA 14
            heat = self._ask(board, pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
        reading.temperature_celsius = heat if (heat := _known(heat)) is not None and -100 < heat < 300 else None
        reading.sm_clock_hertz = self._clock(board, pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)
        reading.memory_clock_hertz = self._clock(board, pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM)
        reasons = self._ask(board, pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if reasons is None:  # the name until about R535, with the same bits
            reasons = self._ask(board, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        reading.clock_event_reasons = int(reasons) if _known(reasons) is not None else None

    def _read_memory(self, board: Board, handle: Any, reading: GpuReading) -> None:
        memory = self._ask(board, pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2, name="memory_v2")
        reserved = _known(memory.reserved) if memory is not None else None
        if memory is None:
            memory = self._ask(board, pynvml.nvmlDeviceGetMemoryInfo, handle, name="memory_v1")
        total = _known(memory.total) if memory is not None else None
        reading.unified_memory = self._is_unified(board, memory, total)
        if reading.unified_memory:
            total, used = _host_memory()
            reserved = None
        else:
            used = _known(memory.used) if memory is not None else None
        reading.memory_total_bytes, reading.memory_used_bytes, reading.memory_reserved_bytes = total, used, reserved

    def _is_unified(self, board: Board, memory: Any, total: float | None) -> bool:
        """Boards that share the host's memory (GB10, Thor) refuse both calls, or say that they have none."""
        if board.mig is not None:
            return False
        if memory is not None:
            return total == 0
        return pynvml.NVML_ERROR_NOT_SUPPORTED in self._refusals(board)

    def read_slow(self, board: Board, reading: GpuReading) -> None:
        """Limits, errors, links, energy and processes. Raises: BoardLostError, BoardsChangedError."""
        handle = self._handles[board.uuid]
        processes = self._ask(board, pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
        reading.processes = float(len(processes)) if processes is not None else None
        if not board.is_instance:
            self._read_limits(board, handle, reading)
            self._read_errors(board, handle, reading)
            self._read_links(board, handle, reading)
            self._check_mig(board, handle)
        reading.slow_observed_ns = time.monotonic_ns()

    def _read_limits(self, board: Board, handle: Any, reading: GpuReading) -> None:
        limit_mw = _known(self._ask(board, pynvml.nvmlDeviceGetEnforcedPowerLimit, handle))
        reading.power_limit_watts = limit_mw / 1e3 if limit_mw is not None else None
        reading.sm_clock_max_hertz = self._clock(board, pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM)
        reading.memory_clock_max_hertz = self._clock(
            board, pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM
        )
        energy_mj = _known(self._ask(board, pynvml.nvmlDeviceGetTotalEnergyConsumption, handle))
        reading.energy_joules = energy_mj / 1e3 if energy_mj is not None else None
        heat = self._field(board, handle, _MEMORY_TEMPERATURE)
        reading.memory_temperature_celsius = heat if heat is not None and 0 < heat < 300 else None
        action = self._field(board, handle, _RECOVERY_ACTION)
        reading.recovery_action = int(action) if action is not None else None

    def _read_errors(self, board: Board, handle: Any, reading: GpuReading) -> None:
        volatile = pynvml.NVML_VOLATILE_ECC
        ecc = pynvml.nvmlDeviceGetTotalEccErrors
        corrected, uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        reading.ecc_corrected_total = _known(self._ask(board, ecc, handle, corrected, volatile))
        reading.ecc_uncorrected_total = _known(self._ask(board, ecc, handle, uncorrected, volatile))
        rows = self._ask(board, pynvml.nvmlDeviceGetRemappedRows, handle)
        if rows is not None:
            reading.remapped_rows_correctable, reading.remapped_rows_uncorrectable = _known(rows[0]), _known(rows[1])
            reading.remap_pending, reading.remap_failed = bool(rows[2]), bool(rows[3])
        else:  # before Ampere pages were retired instead
            retired = [
                self._ask(board, pynvml.nvmlDeviceGetRetiredPages, handle, cause, name=f"retired_{cause}")
                for cause in (0, 1)
            ]
            known = [len(pages) for pages in retired if pages is not None]
            reading.retired_pages = float(sum(known)) if known else None
            pending = self._ask(board, pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
            reading.retired_pending = bool(pending) if pending is not None else None
        reading.pcie_replay_total = _known(self._ask(board, pynvml.nvmlDeviceGetPcieReplayCounter, handle))

    def _read_links(self, board: Board, handle: Any, reading: GpuReading) -> None:
        up = down = 0
        for link in range(_NVLINK_LINKS):
            state = self._ask(board, pynvml.nvmlDeviceGetNvLinkState, handle, link, name=f"nvlink_{link}")
            if state is None:
                break
            up, down = up + (state == 1), down + (state != 1)
        reading.nvlink_up, reading.nvlink_down = (float(up), float(down)) if up + down else (None, None)
        rx = self._field(board, handle, _NVLINK_RX_KIB, _ALL_LINKS)
        tx = self._field(board, handle, _NVLINK_TX_KIB, _ALL_LINKS)
        reading.nvlink_rx_bytes = rx * 1024 if rx is not None else None
        reading.nvlink_tx_bytes = tx * 1024 if tx is not None else None

    def _check_mig(self, board: Board, handle: Any) -> None:
        mode = self._ask(board, pynvml.nvmlDeviceGetMigMode, handle)
        if mode is not None and (mode[0] == 1) != (board.mig is not None):
            raise BoardsChangedError(f"MIG of {board.uuid} was switched")
        if board.mig is not None:
            found = {instance.uuid for instance in self._instances(handle, board)}
            if found != {other.uuid for other in self.boards if other.is_instance and other.parent_uuid == board.uuid}:
                raise BoardsChangedError(f"the MIG instances of {board.uuid} have changed")

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _clock(self, board: Board, call: Callable[..., Any], handle: Any, kind: int) -> float | None:
        mhz = _known(self._ask(board, call, handle, kind, name=f"{call.__name__}_{kind}"))
        return mhz * 1e6 if mhz is not None else None

    def _field(self, board: Board, handle: Any, field: int, scope: int = 0) -> float | None:
        name = f"field_{field}"
        values = self._ask(board, pynvml.nvmlDeviceGetFieldValues, handle, [(field, scope)], name=name)
        if values is None:
            return None
        (value,) = values
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            if value.nvmlReturn in _UNSUPPORTED | _STALE_HANDLE:
                self._no.add((board.uuid, board.mig is not None, name))
            return None
        return _known(_field_number(value))

    def _ask(self, board: Board, call: Callable[..., Any], *arguments: Any, name: str = "") -> Any:
        """The call's answer, or None when there is none for this board."""
        key = (board.uuid, board.mig is not None, name or call.__name__)
        if key in self._no:
            return None
        try:
            answer = call(*arguments)
        except pynvml.NVMLError as error:
            code = error.value
        else:
            self.answers += 1
            return answer
        if code in _DRIVER_GONE:
            raise DriverError(code, pynvml.nvmlErrorString(code))
        if code in _LOST:
            raise BoardLostError(board.uuid)
        if code == pynvml.NVML_ERROR_UNKNOWN:
            self.unknown_errors += 1
        if code == pynvml.NVML_ERROR_RESET_REQUIRED:
            raise ResetRequiredError(board.uuid)
        if code in _STALE_HANDLE and board.is_instance:
            raise BoardsChangedError(board.uuid)
        if code in _UNSUPPORTED or code in _STALE_HANDLE:
            self._no.add(key)
            if code == pynvml.NVML_ERROR_NOT_SUPPORTED:
                self._no.add((board.uuid, board.mig is not None, f"{key[2]}:{code}"))
        return None

    def _refusals(self, board: Board) -> set[int]:
        """Why the plain memory call was refused, of the codes that matter."""
        key = (board.uuid, board.mig is not None, f"memory_v1:{pynvml.NVML_ERROR_NOT_SUPPORTED}")
        return {pynvml.NVML_ERROR_NOT_SUPPORTED} if key in self._no else set()

    def _ask_once(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """An answer while looking for boards; None when there is none. Raises: DriverError."""
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            if error.value in _DRIVER_GONE:
                raise _driver_error(error) from None
            return None

    @staticmethod
    def _call_driver(call: Callable[..., Any]) -> Any:
        try:
            return call()
        except pynvml.NVMLError as error:
            raise _driver_error(error) from None

    def uuid_of(self, handle: Any) -> str | None:
        """The board that a handle out of an event means."""
        try:
            return str(pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError:
            address = _address(handle)
            return next((uuid for uuid, known in self._handles.items() if _address(known) == address), None)

    def handle(self, uuid: str) -> Any:
        """The handle of a board."""
        return self._handles[uuid]


def _driver_error(error: Any) -> DriverError:
    code = int(error.value)
    return DriverError(code, str(error))


def _refuse_old_wrapper() -> None:
    """PyPI's `pynvml` before 12 installs a package of the same name, with structures that do not fit the driver's."""
    if not Path(pynvml.__file__).name.startswith("pynvml"):
        raise DriverError(
            -1, f"{pynvml.__file__} is the old 'pynvml' package, not nvidia-ml-py: pip uninstall pynvml, and reinstall"
        )


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


#: What the driver and its tools put for "no value", in 32 and 64 bits.
_BLANKS = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFE, 0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 0x7FFFFFFFFFFFFFF2})


def _known(value: Any) -> float | None:
    """The number, or None when it is missing or one of the values that stand for "none"."""
    if value is None:
        return None
    if value in _BLANKS or value >= 0x7FFFFFFFFFFFFFF0:
        return None
    return float(value)


def _percent(value: Any) -> float | None:
    number = _known(value)
    return number / 100 if number is not None and 0 <= number <= 100 else None


def _field_number(value: Any) -> float | None:
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


def _host_memory() -> tuple[float | None, float | None]:
    """Total and used bytes of the host's memory, which boards with unified memory share."""
    values = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            values[name] = float(rest.split()[0]) * 1024
    total, available = values.get("MemTotal"), values.get("MemAvailable")
    return total, total - available if total is not None and available is not None else None

"""The driver as NVML shows it, through nvidia-ml-py: from init to shutdown.

Each call may be unsupported on a board, in a MIG mode, or in a driver's version: the answer "no" is kept per call,
board and MIG mode, so that it is asked once. Handles are kept too (looking one up can be expensive) and boards are
known by UUID, never by index: indices shift when a board disappears.

Source: nvml.h (https://docs.nvidia.com/deploy/nvml-api/); nvidia-ml-py's pynvml.py.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from zerohop_agent.collectors.gpu.reading import Board

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
        self._refusals: set[tuple[str, bool, str, int]] = set()
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
                "mig_profile": name.rpartition("MIG ")[2] if "MIG " in name else None,
            }
            found.append(Board(uuid, name, parent.index, parent.bus_id, parent.minor, mig))
        return found

    def check_mig(self, board: Board) -> None:
        """Raises: BoardsChangedError when MIG of the board was switched or its instances are others."""
        handle = self._handles[board.uuid]
        mode = self.ask(board, pynvml.nvmlDeviceGetMigMode, handle)
        if mode is not None and (mode[0] == 1) != (board.mig is not None):
            raise BoardsChangedError(f"MIG of {board.uuid} was switched")
        if board.mig is not None:
            found = {instance.uuid for instance in self._instances(handle, board)}
            if found != {other.uuid for other in self.boards if other.is_instance and other.parent_uuid == board.uuid}:
                raise BoardsChangedError(f"the MIG instances of {board.uuid} have changed")

    # -- calls ---------------------------------------------------------------------------------------------------------

    def ask(self, board: Board, call: Callable[..., Any], *arguments: Any, name: str = "") -> Any:
        """The call's answer, or None when there is none for this board."""
        name = name or call.__name__
        if self._key(board, name) in self._no:
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
        self.note_refusal(board, name, code)
        return None

    def not_supported(self, board: Board, name: str) -> bool:
        """True when the board answered the call with Not Supported (and not that the driver lacks it)."""
        return (*self._key(board, name), pynvml.NVML_ERROR_NOT_SUPPORTED) in self._refusals

    def note_refusal(self, board: Board, name: str, code: int) -> None:
        """Keep a refusal, so that the call is not made again in this session."""
        if code in _UNSUPPORTED | _STALE_HANDLE:
            self._no.add(self._key(board, name))
            self._refusals.add((*self._key(board, name), code))

    @staticmethod
    def _key(board: Board, name: str) -> tuple[str, bool, str]:
        return board.uuid, board.mig is not None, name

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

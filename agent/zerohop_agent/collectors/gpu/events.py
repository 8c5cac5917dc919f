"""XID events, waited for in a thread of the NVML child: the wait blocks inside the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pynvml

from zerohop_agent.collectors.gpu.nvml import Nvml

_WAIT_MS = 1000
_ERROR_PAUSE_S = 0.2
#: A double bit error may come as an event of its own; its XID is this.
_XID_DOUBLE_BIT = 48


class XidEvents:
    """Calls `on_xid(uuid, code)` for every XID of the boards, from its own thread.

    Events are told per board, also with MIG. Some boards fall off the bus without one.
    """

    def __init__(self, nvml: Nvml, on_xid: Callable[[str, int], None]) -> None:
        self._nvml = nvml
        self._on_xid = on_xid
        self._set = None
        self._stopping = threading.Event()
        self.registered = 0

    def start(self) -> None:
        """Register every board that has such events, and wait for them; without one there is no thread."""
        wanted = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return
        for board in self._nvml.boards:
            if board.is_instance:
                continue
            handle = self._nvml.handle(board.uuid)
            try:
                supported = wanted & pynvml.nvmlDeviceGetSupportedEventTypes(handle)
                if supported:
                    pynvml.nvmlDeviceRegisterEvents(handle, supported, self._set)
                    self.registered += 1
            except pynvml.NVMLError:
                continue
        if self.registered:
            threading.Thread(target=self._wait, name="xid-events", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end; it does so within a second, or with the process."""
        self._stopping.set()

    def _wait(self) -> None:
        while not self._stopping.is_set():
            try:
                data = pynvml.nvmlEventSetWait_v2(self._set, _WAIT_MS)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    # A lost board makes every wait return at once: without a pause this would take a whole core.
                    self._stopping.wait(_ERROR_PAUSE_S)
                continue
            uuid = self._nvml.uuid_of(data.device)
            if uuid is not None:
                double_bit = data.eventType == pynvml.nvmlEventTypeDoubleBitEccError
                self._on_xid(uuid, _XID_DOUBLE_BIT if double_bit else int(data.eventData))

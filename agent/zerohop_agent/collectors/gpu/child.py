"""The NVML child process: reads every board at each tick and says what it found on its standard output.

    python -m zerohop_agent.collectors.gpu.child FAST_MS SLOW_MS

It ends when its input closes or its parent dies, and also whenever NVML must begin anew (the driver went away, boards
changed): the agent starts another, with a fresh mapping of the library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import Any

from zerohop_agent.collectors.gpu.frames import encode
from zerohop_agent.collectors.gpu.reading import Board, GpuReading

_PR_SET_PDEATHSIG = 1
_STORM_PAUSE_S = 0.1


class Output:
    """Writes whole messages to the pipe, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def say(self, kind: str, **values: Any) -> None:
        """Send one message; a parent that is gone ends the process."""
        data = encode({"t": kind, **values})
        try:
            with self._lock:
                while data:
                    data = data[os.write(self._descriptor, data) :]
        except BrokenPipeError:
            os._exit(0)


def main(arguments: list[str]) -> int:
    """Run until told to stop; the return value is the exit status."""
    fast_s, slow_s = (int(text) / 1000 for text in arguments)
    _follow_parent()
    output = Output(os.dup(1))
    os.dup2(2, 1)  # whatever a library prints must not land between two messages
    output.say("starting", pid=os.getpid())
    _run(output, fast_s, slow_s)
    return 0


def _run(output: Output, fast_s: float, slow_s: float) -> None:
    try:
        from zerohop_agent.collectors.gpu import nvml as driver
    except (ImportError, AttributeError) as error:
        output.say("end", state="wrapper", code=-1, text=f"pynvml cannot be used: {error}")
        return
    try:
        nvml = driver.Nvml()
    except driver.DriverError as error:
        output.say("end", state="init", code=error.code, text=str(error))
        return
    output.say(
        "boards", driver=nvml.driver_version, boards=[board.as_map() for board in nvml.boards], ns=time.monotonic_ns()
    )
    try:
        _Loop(nvml, output, fast_s, slow_s).run()
    except driver.DriverError as error:
        output.say("end", state="driver", code=error.code, text=str(error))
    except driver.BoardsChangedError as error:
        output.say("end", state="changed", code=0, text=str(error))


class _Loop:
    """Ticks: loads at every one, the rest at slow ones and right after an XID."""

    def __init__(self, nvml: Any, output: Output, fast_s: float, slow_s: float) -> None:
        from zerohop_agent.collectors.gpu.measure import BoardReader

        self._nvml = nvml
        self._output = output
        self._fast_s = fast_s
        self._slow_s = slow_s
        self._readings: dict[str, GpuReading] = {board.uuid: GpuReading() for board in nvml.boards}
        self._readers = {board.uuid: BoardReader(nvml, board) for board in nvml.boards}
        self._wake = threading.Event()
        self._slow_due = self._last_slow = 0.0
        self._lost_since: dict[str, float] = {}

    def run(self) -> None:
        """Tick until something ends it."""
        from zerohop_agent.collectors.gpu.events import XidEvents

        events = XidEvents(self._nvml, self._on_xid)
        events.start()
        due = time.monotonic()
        try:
            while True:
                started = time.monotonic()
                slow = started >= self._slow_due
                if slow:
                    self._last_slow, self._slow_due = started, started + self._slow_s
                self._stop_if_lost(started)
                self._tick(slow=slow)
                due = max(due + self._fast_s, time.monotonic())
                if self._wake.wait(max(0.0, due - time.monotonic())):
                    # Look closely at once, but a storm of XIDs must not make this a busy loop.
                    time.sleep(max(0.0, started + _STORM_PAUSE_S - time.monotonic()))
                    self._wake.clear()
                    self._slow_due = min(self._slow_due, self._last_slow + 10 * _STORM_PAUSE_S)
        finally:
            events.stop()

    def _on_xid(self, uuid: str, code: int) -> None:
        self._output.say("xid", uuid=uuid, code=code, ns=time.monotonic_ns())
        self._wake.set()

    def _stop_if_lost(self, now: float) -> None:
        """A board that was lost comes back to a new NVML session only: begin anew now and then.

        Not at once: the XID that says why is often told a moment after the first call failed.
        """
        from zerohop_agent.collectors.gpu.nvml import BoardsChangedError

        for uuid, reading in self._readings.items():
            if not reading.lost:
                self._lost_since.pop(uuid, None)
            elif now - self._lost_since.setdefault(uuid, now) >= self._slow_s:
                raise BoardsChangedError(f"looking for {uuid} again")

    def _tick(self, *, slow: bool) -> None:
        for board in self._nvml.boards:
            self._read(board, slow=slow)
        self._nvml.check_access()
        self._output.say("read", gpus={uuid: reading.as_map() for uuid, reading in self._readings.items()})

    def _read(self, board: Board, *, slow: bool) -> None:
        from zerohop_agent.collectors.gpu.nvml import BoardLostError, ResetRequiredError

        reading, reader = self._readings[board.uuid], self._readers[board.uuid]
        if reading.lost:
            reading.observed_ns = time.monotonic_ns()
            return
        try:
            if slow or not reading.slow_observed_ns:
                reader.read_slow(reading)
            reader.read_fast(reading)
        except BoardLostError:
            self._readings[board.uuid] = GpuReading(observed_ns=time.monotonic_ns(), lost=True)
        except ResetRequiredError:
            self._readings[board.uuid] = GpuReading(observed_ns=time.monotonic_ns(), reset_required=True)


def _follow_parent() -> None:
    """End with the parent, also when it is killed. A call that hangs in the driver ends when the driver lets go."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, name="parent", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

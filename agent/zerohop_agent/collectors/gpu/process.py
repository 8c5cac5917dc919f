"""Runs the NVML child and keeps the last thing it said. A child that hangs is left behind and another is started."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from zerohop_agent.collectors.gpu.frames import Decoder
from zerohop_agent.collectors.gpu.settings import GpuSettings

#: nvmlReturn_t values that mean "there is nothing to read here", not "something is wrong".
LIBRARY_NOT_FOUND = 12
DRIVER_NOT_LOADED = 9
VERSION_MISMATCH = 18
UNKNOWN = 999

_TEXTS = {
    VERSION_MISMATCH: "the driver was replaced under its library; pods with the old one must be made anew",
    UNKNOWN: "NVML: Unknown Error; a container may have lost its access to the devices",
}

_READ_BYTES = 1 << 16
_MOST_LEFT_BEHIND = 3


class ChildState:
    """What is known of NVML as a whole; `text` is for people."""

    STARTING = "starting"
    RUNNING = "running"
    HUNG = "hung"
    ABSENT = "absent"
    FAILED = "failed"
    RELEASED = "released"


class NvmlProcess:
    """The child, as seen by the event loop. `on_message` gets each message, in order.

    Nothing here waits for the child: `check` is called often and does what is due (start, give up, start again).
    """

    def __init__(self, settings: GpuSettings, on_message: Callable[[dict[str, Any]], None]) -> None:
        self._settings = settings
        self._on_message = on_message
        self._child: subprocess.Popen[bytes] | None = None
        self._input = self._output = -1
        self._decoder = Decoder()
        self._abandoned: list[subprocess.Popen[bytes]] = []
        self._heard_ns = 0
        self._start_due_ns = 0
        self._retry_ns = settings.retry_ns
        self._started_well = False
        self.state = ChildState.STARTING
        self.text = "NVML has not answered yet"
        self.unknown_failures = 0
        self.starts = 0

    @property
    def left_behind(self) -> int:
        """Children that hang in the driver and could not be ended."""
        return len(self._abandoned)

    def check(self, now_ns: int) -> None:
        """Start a child when one is due, and give one up that has been silent for too long."""
        self._abandoned = [child for child in self._abandoned if child.poll() is None]
        release = self._settings.release_file
        if release is not None and release.exists():
            self._end()
            self.state, self.text = ChildState.RELEASED, f"released while {release} exists"
            self._start_due_ns = 0
            return
        if self._child is None:
            # Each child that hangs in the kernel stays until the driver lets go: more of them would not help.
            if now_ns >= self._start_due_ns and len(self._abandoned) < _MOST_LEFT_BEHIND:
                self._start(now_ns)
            return
        if now_ns - self._heard_ns > self._deadline_ns:
            # Perhaps it is we who were held up, and its words lie in the pipe.
            self._readable(self._child)
        if self._child is not None and time.monotonic_ns() - self._heard_ns > self._deadline_ns:
            text = f"no answer from the driver for {self._deadline_ns / 1e9:g} s"
            self._abandon()
            self._failed(ChildState.HUNG, text, now_ns)

    @property
    def _deadline_ns(self) -> int:
        return self._settings.deadline_ns if self._started_well else self._settings.start_deadline_ns

    def start_anew(self, now_ns: int) -> None:
        """End a child that is well, and start the next at once."""
        if self._child is not None and self.state == ChildState.RUNNING:
            self._end()
            self._start_due_ns = now_ns

    def _start(self, now_ns: int) -> None:
        command = [
            sys.executable,
            "-m",
            "zerohop_agent.collectors.gpu.child",
            str(max(1, self._settings.interval_ns // 1_000_000)),
            str(max(1, self._settings.slow_interval_ns // 1_000_000)),
        ]
        # Two pipes of our own: a descriptor in hand is simpler than an optional file object.
        child_input, self._input = os.pipe()
        self._output, child_output = os.pipe()
        try:
            child = subprocess.Popen(command, stdin=child_input, stdout=child_output)
        finally:
            os.close(child_input)
            os.close(child_output)
        os.set_blocking(self._output, False)
        asyncio.get_running_loop().add_reader(self._output, self._readable, child)
        self._child, self._decoder = child, Decoder()
        self._heard_ns, self._started_well, self._start_due_ns = now_ns, False, 0
        self.starts += 1

    def _readable(self, child: subprocess.Popen[bytes]) -> None:
        try:
            data = os.read(self._output, _READ_BYTES)
            messages = self._decoder.feed(data)
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            self._abandon()
            self._failed(ChildState.FAILED, f"the NVML child speaks nonsense: {error}", time.monotonic_ns())
            return
        for message in messages:
            self._hear(message)
        if not data and self._child is child:
            self._end()
            if not self._start_due_ns:
                self._failed(ChildState.FAILED, "the NVML child ended without a word", time.monotonic_ns())

    def _hear(self, message: dict[str, Any]) -> None:
        now_ns = time.monotonic_ns()
        self._heard_ns = now_ns
        kind = message.get("t")
        if kind == "boards":
            self._started_well = True
        elif kind == "read":
            self.state, self.text = ChildState.RUNNING, ""
            self._retry_ns, self.unknown_failures, self._start_due_ns = self._settings.retry_ns, 0, 0
        elif kind == "end":
            self._ended(str(message["state"]), int(message["code"]), str(message["text"]), now_ns)
        self._on_message(message)

    def _ended(self, state: str, code: int, text: str, now_ns: int) -> None:
        if state == "changed":
            self._start_due_ns = now_ns  # look again at once
            return
        if state == "init" and code == UNKNOWN:
            self.unknown_failures += 1
        if code == LIBRARY_NOT_FOUND:
            self._failed(ChildState.ABSENT, "no NVML library (libnvidia-ml.so.1)", now_ns)
            self._start_due_ns = now_ns + self._settings.absent_retry_ns
        elif code == DRIVER_NOT_LOADED:
            self._failed(ChildState.ABSENT, "the NVIDIA driver is not loaded", now_ns)
        else:
            self._failed(ChildState.FAILED, _TEXTS.get(code, f"NVML: {text}"), now_ns)

    def _failed(self, state: str, text: str, now_ns: int) -> None:
        self.state, self.text = state, text
        self._start_due_ns = now_ns + self._retry_ns
        self._retry_ns = min(self._retry_ns * 2, self._settings.max_retry_ns)

    def _abandon(self) -> None:
        """Kill the child and do not wait: a call that hangs in the kernel ends when the driver lets go of it."""
        child = self._child
        if child is None:
            return
        child.kill()
        self._detach()
        if child.poll() is None:
            self._abandoned.append(child)

    def _end(self) -> None:
        """Close the child's input, which ends a child that is well."""
        child = self._child
        if child is None:
            return
        self._detach()
        if child.poll() is None:
            self._abandoned.append(child)

    def _detach(self) -> None:
        asyncio.get_running_loop().remove_reader(self._output)
        os.close(self._output)
        os.close(self._input)
        self._child = None

    async def close(self, timeout_s: float = 1.0) -> None:
        """End every child; one that hangs in the driver is killed and left to the kernel."""
        self._end()
        await self._wait(timeout_s)
        for child in self._abandoned:
            child.kill()
        await self._wait(timeout_s)

    async def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._abandoned and time.monotonic() < deadline:
            self._abandoned = [child for child in self._abandoned if child.poll() is None]
            await asyncio.sleep(0.005)

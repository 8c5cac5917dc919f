"""Child processes: started with their logs kept, waited for, watched, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LOG_LINES = 200
_libc = ctypes.CDLL(None)


class ChildFailed(Exception):
    """A child did not start, or ended while it was needed. The message holds its last lines."""


class Child:
    """One running program. `lines` are the last ones that it printed."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self.lines: deque[str] = deque(maxlen=_LOG_LINES)
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        stream = self.process.stdout
        while stream is not None:
            try:
                line = await stream.readline()
            except ValueError:  # a line longer than the stream's limit
                continue
            if not line:
                break
            self.lines.append(line.decode(errors="replace").rstrip())
            self._news.set()
        self._news.set()

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    async def line(self, wanted: Callable[[str], bool], timeout_s: float) -> str:
        """Return the first line that is `wanted`. Raises: ChildFailed."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    for line in self.lines:
                        if wanted(line):
                            return line
                    if self._reading.done():
                        code = await self.process.wait()
                        raise ChildFailed(f"{self.name} ended with exit code {code}:\n{self.tail()}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise ChildFailed(f"{self.name} was not ready after {timeout_s:g} s:\n{self.tail()}") from None

    async def ready(self, timeout_s: float = 30.0) -> None:
        """Wait for the readiness line. Raises: ChildFailed."""
        await self.line(lambda line: line.startswith("ready"), timeout_s)

    def tail(self) -> str:
        """The last lines, indented."""
        return "\n".join(f"    {line}" for line in list(self.lines)[-12:])

    async def ended(self) -> int:
        """Return the exit code once the child has ended and its last line was read."""
        code = await self.process.wait()
        await self._reading
        return code

    async def stop(self, grace_s: float) -> None:
        """End it with SIGTERM, and with SIGKILL (and all that it started) after `grace_s`."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), grace_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        await self.process.wait()
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading


class Children:
    """All programs of one run. Each leads its own session: a Ctrl-C reaches only us, and we end them in order."""

    def __init__(self, tell: Callable[[int], None] | None = None) -> None:
        """`tell` hears the process group of each child that starts."""
        self._children: list[Child] = []
        self._tell = tell

    async def start(self, name: str, command: Sequence[str | Path], env: dict[str, str] | None = None) -> Child:
        """Start a program. The kernel kills it if we die without having stopped it. Raises: OSError."""
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
        )
        if self._tell is not None:
            self._tell(process.pid)
        child = Child(name, process)
        self._children.append(child)
        return child

    async def first_to_end(self) -> None:
        """Return never, unless a child ends. Raises: ChildFailed then."""
        waits = {asyncio.create_task(child.ended()): child for child in self._children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        child = waits[done.pop()]
        raise ChildFailed(f"{child.name} ended with exit code {child.process.returncode}:\n{child.tail()}")

    async def stop(self, grace_s: float = 3.0) -> None:
        """End all of them, those started last first."""
        for child in reversed(self._children):
            await child.stop(grace_s)
        self._children.clear()


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

"""How a process says that it serves, hears that it shall stop, and does not outlive its parent."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from zerohop_process import log
from zerohop_process.errors import ConfigError

_logger = log.get("lifecycle")
_PR_SET_PDEATHSIG = 1


def ready(program: str, **fields: object) -> None:
    """Print the readiness line on standard error: ``ready`` alone (text), or one JSON object whose message is
    ``ready``.

    ``fields`` (addresses bound to port 0, for example) go into a log line in front of it, so that ``ready`` is the
    last word.
    """
    if log.current_format() == "json":
        line = json.dumps({"message": "ready", "program": program, **fields}, default=str)
    else:
        if fields:
            log.event(_logger, "info", "serving", **fields)
        line = "ready"
    print(line, file=sys.stderr, flush=True)


class StopSignal:
    """Set by the first SIGTERM or SIGINT; the second ends the process at once with 128 + the signal's number.

    Create it inside the running loop.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._arrived, number)

    def _arrived(self, number: signal.Signals) -> None:
        if self._event.is_set():
            os._exit(128 + number)
        log.event(_logger, "info", "stopping", signal=number.name)
        self._event.set()

    def set(self) -> None:
        """Ask to stop from inside."""
        self._event.set()

    def is_set(self) -> bool:
        """Return whether a stop was asked for."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Return once a stop was asked for."""
        await self._event.wait()


def run(main: Coroutine[Any, Any, int], *, uvloop: bool = True) -> int:
    """Run ``main`` to its end on uvloop (or asyncio's own loop) and return its exit code."""
    if not uvloop:
        return asyncio.run(main)
    import uvloop as uvloop_package  # 20 ms that `--help` need not pay

    return int(uvloop_package.run(main))


def guarded(program: str, body: Callable[[], int]) -> int:
    """Run ``body``; what a person did becomes one line or none: ConfigError 2, Ctrl-C 130, closed pipe 141."""
    try:
        return body()
    except ConfigError as error:
        print(f"{f'zerohop {program}'.rstrip()}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has left; a flush at exit would complain about it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def die_with_parent(number: int = signal.SIGTERM, parent_pid: int | None = None) -> None:
    """Have the kernel send ``number`` to this process when the thread that started it ends, however it ends.

    Call it first thing in a child. ``parent_pid`` closes the race of a parent that died before the call: a child
    that finds another parent exits at once.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        log.event(_logger, "warning", "cannot tie this process to its parent", errno=ctypes.get_errno())
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(0)

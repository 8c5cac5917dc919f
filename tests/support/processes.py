"""Real child processes for tests: start one, wait until it is ready, read its log, stop it and look how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from support.waiting import eventually

#: Seconds that a child may take to its readiness line: Python, numpy and grpc on a busy 2-core machine.
START_TIMEOUT_S = 40.0


class Process:
    """A running child whose standard error (and output) is collected by a thread, line by line."""

    def __init__(self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None):
        self.command = [str(part) for part in command]
        self._popen = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            cwd=cwd,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._lines.append(line.rstrip("\n"))

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        return self._popen.poll()

    @property
    def log(self) -> str:
        """Everything it has printed so far."""
        return "\n".join(self._lines)

    def wait_for(self, text: str | Callable[[str], object], timeout: float = START_TIMEOUT_S) -> str:
        """Return the first line that contains (or satisfies) ``text``. Fails at once if the child ends before."""
        matches = text if callable(text) else lambda line: text in line

        def found() -> str | None:
            ended = self.returncode is not None and not self._reader.is_alive()
            line = next((line for line in list(self._lines) if matches(line)), None)
            if line is None and ended:
                raise RuntimeError(f"{self.name} ended with {self.returncode} before {text!r}:\n{self.log}")
            return line

        try:
            line = eventually(found, timeout, what=f"{text!r} in the log of {self.name}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log}") from None
        assert line is not None
        return line

    def wait_ready(self, timeout: float = START_TIMEOUT_S) -> Process:
        """Wait for the readiness line."""
        self.wait_for(lambda line: line.startswith("ready") or '"ready"' in line, timeout)
        return self

    @property
    def name(self) -> str:
        return " ".join(Path(part).name for part in self.command[:4])

    def signal(self, number: int) -> None:
        """Send a signal to the child alone."""
        self._popen.send_signal(number)

    def wait(self, timeout: float = 10.0) -> int:
        """Return the exit code. Raises: AssertionError, with the log, if the child does not end in time."""
        try:
            code = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {timeout:g} s:\n{self.log}") from None
        self._reader.join(2.0)
        return code

    def kill(self) -> None:
        """End it like a crash: SIGKILL, no clean-up."""
        self._popen.kill()
        self.wait()

    def stop(self, timeout: float = 10.0, *, code: int = 0) -> str:
        """Ask it to end (SIGTERM), check its exit code and that it left no traceback; return its log."""
        if self.returncode is None:
            self.signal(signal.SIGTERM)
        ended = self.wait(timeout)
        assert ended == code, f"{self.name} ended with {ended}, not {code}:\n{self.log}"
        assert "Traceback" not in self.log, self.log
        return self.log

    def end(self) -> None:
        """Leave nothing behind, whatever state it is in; for clean-up, without checks."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait(10)
        self._reader.join(2.0)
        if self._popen.stdout is not None and not self._reader.is_alive():
            self._popen.stdout.close()


def zerohop_command(*arguments: str | Path) -> list[str]:
    """Return the command line of the ``zerohop`` program of this interpreter's environment."""
    return [sys.executable, "-m", "zerohop_console.main", *map(str, arguments)]


class Processes:
    """Children of one test; all are gone when it ends."""

    def __init__(self) -> None:
        self.children: list[Process] = []

    def start(
        self, *command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None, wait: bool = False
    ) -> Process:
        """Start any program."""
        child = Process(command, env=env, cwd=cwd)
        self.children.append(child)
        return child.wait_ready() if wait else child

    def zerohop(self, *arguments: str | Path, env: Mapping[str, str] | None = None, wait: bool = True) -> Process:
        """Start ``zerohop ARGUMENTS`` and, by default, wait for its readiness line."""
        return self.start(*zerohop_command(*arguments), env=env, wait=wait)

    def end(self) -> None:
        """Kill what still runs, last started first."""
        for child in reversed(self.children):
            child.end()


@contextlib.contextmanager
def processes() -> Iterator[Processes]:
    """``with processes() as run: run.zerohop("agent", ...)``."""
    run = Processes()
    try:
        yield run
    finally:
        run.end()


def free_port() -> int:
    """Return a TCP port that is free on 127.0.0.1 now and below the range that outgoing connections use.

    Ports from the ephemeral range could be taken by somebody's outgoing connection between this call and the bind.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    first = max(10_240, low - 20_000)
    for offset in range(low - first):
        port = first + (os.getpid() * 131 + next(_turn) * 7 + offset) % (low - first)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free TCP port")


def free_ports(count: int) -> list[int]:
    """Return ``count`` different free ports."""
    ports: list[int] = []
    while len(ports) < count:
        port = free_port()
        if port not in ports:
            ports.append(port)
    return ports


def _turns() -> Iterator[int]:
    turn = int.from_bytes(os.urandom(2), "little")
    while True:
        yield turn
        turn += 1


_turn = _turns()

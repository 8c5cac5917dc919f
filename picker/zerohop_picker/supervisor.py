"""Several workers as one picker: starts them, restarts the dead, and speaks for all on the health and metrics ports."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from time import monotonic
from typing import Any

from zerohop_picker import config as settings
from zerohop_picker.compiled import compiled
from zerohop_picker.config import PickerConfig
from zerohop_picker.control import Control
from zerohop_picker.health import Health
from zerohop_picker.metrics import Metrics, Page
from zerohop_picker.ports import Ports
from zerohop_picker.process_metrics import export_process
from zerohop_process import lifecycle, log
from zerohop_process.errors import ConfigError

_logger = log.get("picker.supervisor")

FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.1, 10.0
STEADY_S = 30.0
PAGE_TIMEOUT_S = 2.0


class WorkerProcess:
    """One worker's process, its health as last told, and its line."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.process: asyncio.subprocess.Process | None = None
        self.serving = asyncio.Event()
        self.ready = False
        self.pools: Mapping[str, bool] = {}
        self.listening: list[str] = []
        self._control: Control | None = None
        self._pages: dict[int, asyncio.Future[Page]] = {}
        self._turn = 0

    async def run(self, words: list[str], changed: Any) -> int:
        """Start the process, listen to it until it ends, and return its exit code."""
        ours, theirs = socket.socketpair()
        try:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "zerohop_picker.worker", f"--worker-index={self.index}",
                f"--control-fd={theirs.fileno()}", f"--supervisor-pid={os.getpid()}", *words,
                pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        finally:
            theirs.close()
        control = self._control = await Control.over(ours)
        try:
            while (message := await control.receive()) is not None:
                self._heard(message)
                changed()
        finally:
            self._gone(control)
            changed()
        return await self.process.wait()

    async def page(self) -> Page:
        """Return the worker's metrics; none when it does not answer."""
        if self._control is None or not self.serving.is_set():
            return []
        self._turn += 1
        future = self._pages[self._turn] = asyncio.get_running_loop().create_future()
        self._control.send("metrics", turn=self._turn)
        try:
            return await asyncio.wait_for(future, PAGE_TIMEOUT_S)
        except TimeoutError:
            return []
        finally:
            self._pages.pop(self._turn, None)

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal if it runs."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    def _heard(self, message: Mapping[str, Any]) -> None:
        kind = message["kind"]
        if kind == "ready":
            self.listening = message["listen"]
            self.serving.set()
        elif kind == "health":
            self.ready, self.pools = message["ready"] and not message["draining"], message["pools"]
        elif kind == "metrics":
            future = self._pages.get(message["turn"])
            if future is not None and not future.done():
                future.set_result(message["page"])

    def _gone(self, control: Control) -> None:
        control.close()
        self._control = None
        self.ready, self.pools = False, {}
        self.serving.clear()
        for future in self._pages.values():
            future.cancel()


class Supervisor:
    """Keeps `config.workers` workers running until told to stop."""

    def __init__(self, config: PickerConfig) -> None:
        self._config = config
        self._words = settings.as_words(config)
        self.health = Health()
        self.metrics = Metrics()
        export_process(self.metrics)
        self._workers = [WorkerProcess(index) for index in range(config.workers)]
        self._restarts = self.metrics.counters("worker_restarts", "Workers that ended and were started again.", "index")
        self.metrics.gauge("workers", "Workers that serve.", lambda: sum(w.serving.is_set() for w in self._workers))
        self._stopping = asyncio.Event()
        self._failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Start everything, serve until SIGTERM, drain, and return the exit code."""
        stop = lifecycle.StopSignal()
        loop = asyncio.get_running_loop()
        ports = Ports(self._config, self.health)
        keepers = [loop.create_task(self._keep(worker)) for worker in self._workers]
        try:
            await _first(self._all_serving(), self._failed, stop.wait())
            if self._failed.done():
                return self._failed.result()
            if not stop.is_set():
                addresses = await ports.listen(self._all_pages)
                loop.add_signal_handler(signal.SIGHUP, self._signal_all, signal.SIGHUP)
                listening = ",".join(where for worker in self._workers for where in worker.listening)
                lifecycle.ready("picker", listen=listening, compiled=compiled(), **addresses)
                await stop.wait()
            return 0
        finally:
            self._stopping.set()
            self.health.drain()
            self._signal_all(signal.SIGTERM)
            await asyncio.gather(*keepers, return_exceptions=True)
            await ports.close()

    async def _keep(self, worker: WorkerProcess) -> None:
        """Run one worker, again and again, ever more slowly while it keeps dying."""
        backoff_s, first = FIRST_BACKOFF_S, True
        while not self._stopping.is_set():
            began = monotonic()
            code = await worker.run(self._words, self._changed)
            if self._stopping.is_set():
                return
            if first and code == 2 and not self._failed.done():
                self._failed.set_result(code)  # it has said why on standard error
                return
            first = False
            if monotonic() - began > STEADY_S:
                backoff_s = FIRST_BACKOFF_S
            log.event(
                _logger, "error", "worker ended; starting it again", index=worker.index, code=code, after_s=backoff_s
            )
            self._restarts.labels(str(worker.index)).increment()
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, LAST_BACKOFF_S)

    async def _all_serving(self) -> None:
        for worker in self._workers:
            await worker.serving.wait()

    def _changed(self) -> None:
        ready = [worker for worker in self._workers if worker.ready]
        pools = {name: False for worker in self._workers for name in worker.pools}
        for worker in self._workers:
            for name, can_serve in worker.pools.items():
                pools[name] = pools[name] or can_serve
        self.health.update(ready=bool(ready), pools=pools)

    def _signal_all(self, number: signal.Signals) -> None:
        for worker in self._workers:
            worker.signal(number)

    async def _all_pages(self) -> Mapping[str, Page]:
        pages = await asyncio.gather(*(worker.page() for worker in self._workers))
        by_worker = {str(worker.index): page for worker, page in zip(self._workers, pages, strict=True)}
        return {**by_worker, "supervisor": self.metrics.page()}


async def serve(config: PickerConfig) -> int:
    """Run `config.workers` workers; return the exit code. Raises: ConfigError."""
    try:
        return await Supervisor(config).run()
    except OSError as error:
        raise ConfigError(f"cannot start the workers: {error.strerror}") from None


async def _first(*waits: Any) -> None:
    """Return once one of `waits` is done; what has not finished is cancelled, save the plain future among them."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    left = [task for task, wait in zip(tasks, waits, strict=True) if task is not wait]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)

"""One process that serves ext-proc streams: alone, or as one of several under a supervisor."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Mapping
from time import monotonic_ns
from typing import Any

from zerohop_picker import config as settings
from zerohop_picker.compiled import compiled
from zerohop_picker.config import PickerConfig
from zerohop_picker.control import Control
from zerohop_picker.deciding import Deciding
from zerohop_picker.fronts.calls import Services
from zerohop_picker.fronts.front import Front
from zerohop_picker.fronts.health_calls import health_services
from zerohop_picker.fronts.limits import Limits
from zerohop_picker.health import Health
from zerohop_picker.metrics import Metrics
from zerohop_picker.ports import Ports
from zerohop_picker.process_metrics import export_process
from zerohop_picker.tls import Tls
from zerohop_process import lifecycle, log
from zerohop_process.address import Listen

_logger = log.get("picker")

TICK_S = 0.25
# Gateways look at health about twice a second: give them time to see NOT_SERVING before connections say GOAWAY.
DRAIN_NOTICE_S = 1.0


class Worker:
    """Serves what `config` says, as worker `index`. Create it inside the running loop. Raises: ConfigError."""

    def __init__(self, config: PickerConfig, index: int = 0) -> None:
        self.config = config
        self.index = index
        self.metrics = Metrics()
        export_process(self.metrics)
        self.health = Health()
        self.listening: list[Listen] = []
        self.deciding = Deciding(config, index, self.metrics)
        self._tls = Tls(config.cert_path, config.client_ca, self.metrics) if config.secure_serving else None
        self._front = self._make_front()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen everywhere and begin to follow what may change. Raises: ConfigError."""
        pools: list[tuple[str | None, Listen]] = [(None, where) for where in self.config.listen]
        pools += [(entry.pool, entry.listen) for entry in self.config.pool]
        for pool, where in pools:
            bound = await self._front.listen(
                where.of_worker(self.index), self._services(pool), access=self.config.access, tls=self._tls,
                reuse_port=self.config.workers > 1,
            )  # fmt: skip
            self.listening.append(bound)
        self.tick()
        self._follow(self._ticking())
        for file in self.deciding.files:
            self._follow(file.follow())
        if self._tls is not None:
            self._follow(self._tls.follow())
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)

    def reload(self) -> None:
        """Look at every file now: SIGHUP."""
        log.event(_logger, "info", "reloading")
        self.deciding.reload()
        if self._tls is not None:
            self._tls.look()

    def tick(self) -> None:
        """Say that we live, and look whether we can serve."""
        self.deciding.heartbeat(monotonic_ns())
        self.deciding.report_failures()
        pools = {entry.pool: self.deciding.ready(entry.pool) for entry in self.config.pool}
        ready = self.deciding.ready(None) if self.config.listen else any(pools.values())
        self.health.update(ready=ready, pools=pools)

    async def drain(self) -> None:
        """Leave without losing a request: NOT_SERVING, then GOAWAY, then wait for open streams; then close all."""
        timeout_s = self.config.drain_timeout / 1e9
        self.health.drain()
        if self._front.connected:
            notice_s = min(DRAIN_NOTICE_S, timeout_s / 4)
            await asyncio.sleep(notice_s)
            timeout_s -= notice_s
        cut = await self._front.drain(timeout_s)
        if cut:
            log.event(_logger, "warning", "streams cut at the end of draining", streams=cut)
        await self.close()

    async def close(self) -> None:
        """End everything now."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._front.close()
        self.deciding.close()

    def _make_front(self) -> Front:
        limits = Limits.for_requests(self.config.max_request_bytes)
        if self.config.front == "grpcio":
            # 25 MB that the native front does without
            from zerohop_picker.fronts.grpcio import GrpcioFront

            return GrpcioFront(limits, self.metrics)
        from zerohop_picker.fronts.native import NativeFront

        return NativeFront(limits, self.metrics)

    def _services(self, pool: str | None) -> Services:
        services = dict(self.deciding.services(pool))
        if self.config.health_checking:
            services |= health_services(self.health)
        return services

    async def _ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def _follow(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(_report)
        self._tasks.append(task)


def settle_memory() -> None:
    """Take everything that was made at start out of the garbage collector's sight, and have it look less often.

    Requests leave no cycles behind, so what it finds is next to nothing; looking took 3 % of a busy worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def serve_alone(config: PickerConfig) -> int:
    """Run one worker with its ports until SIGTERM; return the exit code. Raises: ConfigError."""
    stop = lifecycle.StopSignal()
    worker = Worker(config)
    ports = Ports(config, worker.health)

    async def pages() -> Mapping[str, Any]:
        return {"0": worker.metrics.page()}

    try:
        await worker.start()
        settle_memory()
        addresses = await ports.listen(pages)
        lifecycle.ready("picker", listen=",".join(map(str, worker.listening)), compiled=compiled(), **addresses)
        await stop.wait()
        await worker.drain()
    finally:
        await worker.close()
        await ports.close()
    return 0


async def serve_under(config: PickerConfig, index: int, control_fd: int) -> int:
    """Run worker `index` for the supervisor at the other end of `control_fd`. Raises: ConfigError."""
    # A terminal or a service manager signals the whole group: the supervisor decides what Ctrl-C means, and a second
    # SIGTERM (the supervisor's beside the group's) asks for nothing new.
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    control = await Control.over(socket.socket(fileno=control_fd))
    worker = Worker(config, index)

    def tell_health() -> None:
        health = worker.health
        control.send("health", ready=health.ready, draining=health.draining, pools=dict(health.pools))

    async def answer() -> None:
        while (message := await control.receive()) is not None:
            control.send("metrics", page=worker.metrics.page(), turn=message["turn"])
        await worker.close()  # the supervisor is gone, so nobody would start us again or wait for us
        os._exit(128 + signal.SIGTERM)

    try:
        await worker.start()
        settle_memory()
        worker.health.watch(tell_health)
        tell_health()
        control.send("ready", listen=[str(where) for where in worker.listening])
        answering = loop.create_task(answer())
        await stop.wait()
        await worker.drain()
        answering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering
    finally:
        await worker.close()
        control.close()
    return 0


def main() -> int:
    """Entry of a worker process that a supervisor started."""
    parser = argparse.ArgumentParser(prog="zerohop picker worker", allow_abbrev=False)
    settings.add_arguments(parser)
    parser.add_argument("--worker-index", type=int, required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--supervisor-pid", type=int, required=True)
    arguments = parser.parse_args()
    lifecycle.die_with_parent(signal.SIGTERM, arguments.supervisor_pid)

    def body() -> int:
        config = settings.from_arguments(arguments)
        log.configure(config.log_format, f"picker.{arguments.worker_index}", config.log_level)
        return lifecycle.run(serve_under(config, arguments.worker_index, arguments.control_fd))

    return lifecycle.guarded("picker", body)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _logger.error("a background task of the picker ended", exc_info=task.exception())


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())

"""`zerohop agent`: from flags to a running agent and back."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.process_collector import ProcessCollector

from zerohop_agent import config as configuration
from zerohop_agent import discovery, endpoints_file
from zerohop_agent.collectors.base import Collector, CollectorDriver
from zerohop_agent.collectors.gpu.collector import GpuCollector
from zerohop_agent.collectors.host import HostCollector
from zerohop_agent.config import AgentConfig, add_arguments
from zerohop_agent.endpoints import EndpointSet, EndpointSpec
from zerohop_agent.endpoints_file import EndpointsFileState
from zerohop_agent.export.agent_metrics import AgentMetrics
from zerohop_agent.export.server import MetricsServer
from zerohop_agent.modelserver.plugin import ServerCells
from zerohop_agent.modelserver.reader import ModelServerReader
from zerohop_agent.publisher import Publisher
from zerohop_agent.readers import OnFailure, OnSignals, Reader
from zerohop_agent.runtime import Runtime
from zerohop_process import log
from zerohop_process.errors import ConfigError
from zerohop_process.lifecycle import StopSignal, guarded, ready
from zerohop_process.lifecycle import run as run_loop
from zerohop_process.units import duration_text
from zerohop_snapshot.errors import SnapshotError
from zerohop_snapshot.writer import SnapshotWriter

__all__ = ["add_arguments", "run"]

_logger = log.get("agent")
#: The exporter's thread may hold the interpreter for so long before the loop gets its turn; Python's default is 5 ms,
#: as long as a publish interval.
_SWITCH_INTERVAL_S = 0.001


def run(args: argparse.Namespace) -> int:
    """Run the agent until it is told to stop; returns the exit code."""

    def body() -> int:
        config = configuration.from_arguments(args)
        log.configure(config.log_format, "agent", config.log_level)
        for warning in configuration.warnings(config):
            log.event(_logger, "warning", warning)
        _tell(config)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        return run_loop(serve(config))

    return guarded("agent", body)


def _tell(config: AgentConfig) -> None:
    log.event(
        _logger, "info", "starting", node=config.node, shm_dir=config.shm_dir,
        endpoints=len(config.endpoints.endpoints), endpoints_file=config.endpoints_file,
        scrape_interval=duration_text(config.scrape_interval_ns),
        publish_interval=duration_text(config.publish_interval_ns), stale_after=duration_text(config.bounds.stale_ns),
        gpu="auto" if config.gpu else "off", discovery=config.discovery.source,
    )  # fmt: skip


async def serve(config: AgentConfig) -> int:
    """Read, publish and export until SIGTERM or SIGINT.

    Raises: ConfigError when something that the configuration names cannot be used at the start.
    """
    stop = StopSignal()
    try:
        writer = SnapshotWriter(
            config.shm_dir,
            endpoint_capacity=config.endpoint_capacity,
            gpu_capacity=config.gpu_capacity,
            cold_capacity_bytes=config.cold_capacity_bytes,
            mode=config.file_mode,
            group=config.file_group,
        )
    except SnapshotError as error:
        raise ConfigError(f"--shm-dir: {error}") from None
    try:
        return await _serve(config, writer, stop)
    finally:
        writer.close()


async def _serve(config: AgentConfig, writer: SnapshotWriter, stop: StopSignal) -> int:
    runtime = Runtime(
        writer,
        _reader_factory(config),
        node=config.node,
        bounds=config.bounds,
        scrape_interval_ns=config.scrape_interval_ns,
        expected_sources=_sources(config),
        cells=ServerCells(config.shm_dir),
    )
    publisher = Publisher(writer, runtime.prepare, config.publish_interval_ns, polling=lambda: runtime.plugin_live)
    runtime.on_change = publisher.touch
    fatal: list[str] = []

    def end(reason: str) -> None:
        fatal.append(reason)
        stop.set()

    driver = CollectorDriver(_collectors(config, end), runtime.view)
    file_state = EndpointsFileState() if config.endpoints_file is not None else None
    server = _metrics_server(config, runtime, publisher, driver, file_state)
    try:
        await _work(config, runtime, publisher, server, driver, file_state, stop)
    finally:
        await runtime.close()
        publisher.stop()
        if server is not None:
            server.close()
    for reason in fatal:
        log.event(_logger, "error", "ending", reason=reason)
    return 1 if fatal else 0


async def _work(
    config: AgentConfig,
    runtime: Runtime,
    publisher: Publisher,
    server: MetricsServer | None,
    driver: CollectorDriver,
    file_state: EndpointsFileState | None,
    stop: StopSignal,
) -> None:
    """Start every source and collector, say ready once the first snapshot is out, and run until told to stop."""
    runtime.apply("flags", await endpoints_file.resolved(config.endpoints))
    stopped = asyncio.create_task(stop.wait())
    tasks = [stopped, asyncio.create_task(driver.run())]
    try:
        if config.endpoints_file is not None and file_state is not None:
            read = asyncio.Event()

            def apply(endpoints: EndpointSet) -> None:
                runtime.apply("file", endpoints)
                read.set()

            tasks.append(asyncio.create_task(endpoints_file.follow(config.endpoints_file, apply, file_state)))
            waiter = asyncio.create_task(read.wait())
            try:
                await _first_of(waiter, *tasks)
            finally:
                waiter.cancel()
        if config.discovery.source != "off":
            works = await _discovery(config, runtime, driver.collectors, server)
            tasks += [asyncio.create_task(work) for work in works]
        publisher.start()
        fields: dict[str, object] = {"shm_dir": config.shm_dir}
        if server is not None:
            server.start()
            fields["metrics"] = server.address
        if not stop.is_set():
            # What start-up made stays for good; the collector need not look through it again and again.
            gc.collect()
            gc.freeze()
            ready("agent", **fields)
        await _first_of(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _discovery(
    config: AgentConfig, runtime: Runtime, collectors: Sequence[Collector], server: MetricsServer | None
) -> list[Coroutine[Any, Any, None]]:
    """What to run so that Kubernetes says which endpoints there are, and which GPUs serve them.

    Raises: ConfigError when the source that was asked for cannot be used.
    """

    def apply(endpoints: EndpointSet) -> None:
        runtime.apply("kubernetes", endpoints)

    register = server.register if server is not None else None
    gpus = next((collector for collector in collectors if isinstance(collector, GpuCollector)), None)
    socket = config.gpu_settings.pod_resources_socket
    if gpus is None or not socket.parent.is_dir():
        return [await discovery.prepare(config.discovery, apply, register)]
    # grpcio takes 22 MB: only where there is a kubelet to ask.
    from zerohop_agent.kubelet.assignment import GpuAssignment

    interval_s = config.gpu_settings.pod_resources_interval_ns / 1e9
    assignment = GpuAssignment(apply, lambda: gpus.boards, socket, interval_s=interval_s)
    return [await discovery.prepare(config.discovery, assignment.apply, register), assignment.run()]


async def _first_of(*tasks: asyncio.Task[Any]) -> None:
    """Return when one of the tasks ends. Raises: what it ended with."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def _reader_factory(config: AgentConfig) -> Any:
    settings = replace(
        config.model_servers,
        scrape_interval_ns=config.scrape_interval_ns,
        stale_after_ns=config.bounds.stale_ns,
        mappings=config.mappings,
    )

    def make(spec: EndpointSpec, on_signals: OnSignals, on_failure: OnFailure) -> Reader:
        return ModelServerReader(spec, settings, on_signals, on_failure)

    return make


def _sources(config: AgentConfig) -> frozenset[str]:
    sources = {"flags"}
    if config.endpoints_file is not None:
        sources.add("file")
    if config.discovery.source != "off":
        sources.add("kubernetes")
    return frozenset(sources)


def _collectors(config: AgentConfig, end: Callable[[str], None]) -> list[Collector]:
    collectors: list[Collector] = [HostCollector(config.procfs)]
    if config.gpu:
        collectors.append(GpuCollector(config.gpu_settings, capacity=config.gpu_capacity, on_fatal=end))
    return collectors


def _metrics_server(
    config: AgentConfig,
    runtime: Runtime,
    publisher: Publisher,
    driver: CollectorDriver,
    file_state: EndpointsFileState | None,
) -> MetricsServer | None:
    if config.metrics_address is None:
        return None
    registry = CollectorRegistry()
    registry.register(AgentMetrics(runtime, publisher, lambda: list(driver.stats.values()), file_state))
    ProcessCollector(registry=registry)
    return MetricsServer(config.metrics_address, config.shm_dir, registry, publisher.is_alive)

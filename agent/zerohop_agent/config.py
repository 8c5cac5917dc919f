"""The agent's configuration: flags, and a YAML file whose fields have the flags' names. A flag goes before the file."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from zerohop_agent.collectors.gpu.settings import GpuSettings, read_gpu_settings
from zerohop_agent.config_file import file_mode, hold_defaults_back, with_file
from zerohop_agent.discovery import flags as discovery_flags
from zerohop_agent.discovery.settings import DiscoverySettings
from zerohop_agent.endpoints import EndpointSet
from zerohop_agent.endpoints_file import from_address, read_endpoints, read_pools
from zerohop_agent.latches import Bounds
from zerohop_agent.modelserver.mapping import EngineMapping
from zerohop_agent.modelserver.mapping_file import read_mappings
from zerohop_agent.modelserver.settings import ModelServerSettings, read_model_server_settings
from zerohop_process.address import Address, address
from zerohop_process.errors import ConfigError
from zerohop_process.units import duration, duration_text, size


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """All that the agent is told. Durations in ns."""

    shm_dir: Path
    endpoints: EndpointSet
    endpoints_file: Path | None
    scrape_interval_ns: int
    publish_interval_ns: int
    metrics_address: Address | None
    gpu: bool
    node: str
    bounds: Bounds
    endpoint_capacity: int
    gpu_capacity: int
    cold_capacity_bytes: int
    procfs: Path
    file_mode: int
    file_group: str | None
    log_format: Literal["text", "json"]
    log_level: str
    discovery: DiscoverySettings
    gpu_settings: GpuSettings
    #: How each engine's page is read: the built-in mappings with those of the `mappings` section.
    mappings: Mapping[str, EngineMapping]
    #: How model servers are read, but for what the fields above say.
    model_servers: ModelServerSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the agent's flags to `parser`."""
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="YAML file whose fields are named as the flags are (docs/agent.md)")
    add("--shm-dir", type=Path, metavar="DIR", default=Path("/dev/shm/zerohop"), help="shared-memory directory")  # noqa: S108
    add("--endpoint", type=address, action="append", default=[], metavar="HOST:PORT", help="a model server; repeatable")
    add("--endpoints-file", type=Path, metavar="FILE", help="YAML list of model servers, followed while running")
    add("--scrape-interval", type=duration, default=duration("50ms"), metavar="TIME", help="how often each is read")
    add(
        "--publish-interval",
        type=duration,
        default=duration("5ms"),
        metavar="TIME",
        help="shortest time between publishes",
    )
    add("--metrics-address", default="127.0.0.1:9400", metavar="HOST:PORT", help="where Prometheus finds us, or 'off'")
    add("--gpu", choices=["auto", "off"], default="auto", help="read GPUs through NVML where there are any")
    add(
        "--stale-after",
        type=duration,
        default=duration("2s"),
        metavar="TIME",
        help="age at which load values are stale",
    )
    add("--stuck-after", type=duration, default=duration("15s"), metavar="TIME",
        help="time without token progress after which a busy endpoint is stuck")  # fmt: skip
    add("--stuck-trial-after", type=duration, default=duration("30s"), metavar="TIME",
        help="time after which a stuck endpoint is tried again, then twice as long; 0: never")  # fmt: skip
    add(
        "--unhealthy-after", type=int, default=3, metavar="N", help="timeouts or resets in a row that make it unhealthy"
    )
    add("--overloaded-waiting", type=float, default=128, metavar="N", help="queue length that marks it overloaded")
    add("--overloaded-kv-cache", type=float, default=0.98, metavar="RATIO",
        help="KV cache use that marks it overloaded while requests wait")  # fmt: skip
    add(
        "--endpoint-capacity",
        type=int,
        default=256,
        metavar="N",
        help="rows for endpoints, fixed when the file is made",
    )
    add("--gpu-capacity", type=int, default=16, metavar="N", help="rows for GPUs and MIG instances")
    add("--cold-capacity", type=size, default=size("512KiB"), metavar="SIZE", help="room for names, labels and objects")
    add("--procfs", type=Path, default=Path("/proc"), metavar="DIR", help="where the host's /proc is mounted")
    add("--file-mode", type=file_mode, default=0o640, metavar="OCTAL", help="permissions of the snapshot file")
    add("--file-group", default=None, metavar="GROUP", help="group that may read the snapshot file")
    add("--log-format", choices=["text", "json"], default="text", help="form of the log lines")
    add("--log-level", choices=["debug", "info", "warning", "error"], default="info", help="least level that is logged")
    discovery_flags.add_arguments(parser)
    hold_defaults_back(parser)


def from_arguments(args: argparse.Namespace) -> AgentConfig:
    """The configuration that the flags, and the file that they may name, describe.

    Raises: ConfigError naming the flag, or the file and line.
    """
    merged, sections = with_file(args)
    pools = read_pools(sections["pools"]) if "pools" in sections else ()
    default = (pools[0].name,) if len(pools) == 1 else ()
    endpoints = read_endpoints(sections["endpoints"], default) if "endpoints" in sections else ()
    flagged = {str(where): from_address(where) for where in merged.endpoint}
    described = {spec.key for spec in endpoints}
    config = AgentConfig(
        shm_dir=merged.shm_dir,
        endpoints=EndpointSet((*endpoints, *(s for key, s in flagged.items() if key not in described)), pools),
        endpoints_file=merged.endpoints_file,
        scrape_interval_ns=merged.scrape_interval,
        publish_interval_ns=merged.publish_interval,
        metrics_address=_metrics_address(merged.metrics_address),
        gpu=merged.gpu == "auto",
        node=merged.node_name or os.environ.get("NODE_NAME", "") or socket.gethostname(),
        bounds=Bounds(
            stale_ns=merged.stale_after,
            stuck_ns=merged.stuck_after,
            stuck_trial_ns=merged.stuck_trial_after,
            unhealthy_failures=merged.unhealthy_after,
            overloaded_waiting=merged.overloaded_waiting,
            overloaded_kv_cache_ratio=merged.overloaded_kv_cache,
        ),
        endpoint_capacity=merged.endpoint_capacity,
        gpu_capacity=merged.gpu_capacity,
        cold_capacity_bytes=merged.cold_capacity,
        procfs=merged.procfs,
        file_mode=merged.file_mode,
        file_group=merged.file_group,
        log_format=merged.log_format,
        log_level=merged.log_level,
        discovery=discovery_flags.from_arguments(merged),
        gpu_settings=read_gpu_settings(sections["gpu"]) if "gpu" in sections else GpuSettings(),
        mappings=read_mappings(sections.get("mappings")),
        model_servers=read_model_server_settings(sections["model_servers"])
        if "model_servers" in sections
        else ModelServerSettings(),
    )
    _check(config)
    return config


def warnings(config: AgentConfig) -> list[str]:
    """What can be meant but hardly is: one sentence each."""
    found = []
    interval, bounds = config.scrape_interval_ns, config.bounds
    for flag, bound in (("--stale-after", bounds.stale_ns), ("--stuck-after", bounds.stuck_ns)):
        if bound < 3 * interval:
            found.append(
                f"{flag} {duration_text(bound)} is shorter than three scrape intervals ({duration_text(interval)}); "
                "one late reading would set it"
            )
    if config.publish_interval_ns > interval:
        found.append(
            f"--publish-interval {duration_text(config.publish_interval_ns)} is longer than --scrape-interval "
            f"{duration_text(interval)}; values wait before they are seen"
        )
    return found


def _check(config: AgentConfig) -> None:
    limits: tuple[tuple[str, float, float, float, Callable[[Any], str]], ...] = (
        ("--scrape-interval", config.scrape_interval_ns, 1e6, 3.6e12, duration_text),
        ("--publish-interval", config.publish_interval_ns, 1e6, 1e10, duration_text),
        ("--stale-after", config.bounds.stale_ns, 1e7, 3.6e12, duration_text),
        ("--stuck-after", config.bounds.stuck_ns, 1e8, 3.6e12, duration_text),
        ("--stuck-trial-after", config.bounds.stuck_trial_ns, 0, 3.6e12, duration_text),
        ("--unhealthy-after", config.bounds.unhealthy_failures, 1, 1000, str),
        ("--overloaded-waiting", config.bounds.overloaded_waiting, 0, 1e9, str),
        ("--overloaded-kv-cache", config.bounds.overloaded_kv_cache_ratio, 0, 1, str),
        ("--endpoint-capacity", config.endpoint_capacity, 1, 65_536, str),
        ("--gpu-capacity", config.gpu_capacity, 1, 1024, str),
        ("--cold-capacity", config.cold_capacity_bytes, 4096, 2**30, str),
    )
    for flag, value, low, high, show in limits:
        if not low <= value <= high:
            raise ConfigError(f"{flag}: {show(value)} is out of range; it lies between {show(low)} and {show(high)}")


def _metrics_address(text: str) -> Address | None:
    if text.startswith(":"):
        # Every address, of both families where the machine has both.
        text = f"[::]{text}" if socket.has_dualstack_ipv6() else f"0.0.0.0{text}"
    return None if text in ("off", "") else Address.parse(text, "--metrics-address")

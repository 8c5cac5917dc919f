"""How the GPUs are read: the `gpu:` section of the agent's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from zerohop_agent.condition import ConditionSettings
from zerohop_process.strict import Fields, Node, duration

_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Times in ns."""

    #: Loads, memory, power, heat, clocks. The driver averages over 1/6 to 1 s itself; faster tells nothing new.
    interval_ns: int = _SECOND
    #: Limits, errors, links, energy, processes.
    slow_interval_ns: int = 15 * _SECOND
    #: A child that is silent for longer hangs in the driver and is replaced.
    deadline_ns: int = 5 * _SECOND
    #: The same while NVML starts: without persistence mode the first call wakes every board, one after the other.
    start_deadline_ns: int = 60 * _SECOND
    #: Pause before the next child after a failure; doubles up to the second value while failures go on.
    retry_ns: int = _SECOND
    max_retry_ns: int = 60 * _SECOND
    #: The same when there is no NVML library at all: most such nodes have no GPU.
    absent_retry_ns: int = 600 * _SECOND
    #: End the agent after so many failures of `nvmlInit` in a row with Unknown Error, so that its container is made
    #: anew (it has lost its access to the devices); 0: never.
    exit_after_unknown: int = 0
    #: While this file exists every NVML handle is given back: the driver can be unloaded and MIG be switched.
    release_file: Path | None = None
    #: The kubelet's socket that says which pod holds which GPU; used with discovery where its folder exists.
    pod_resources_socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    #: How often it is asked, besides right after a pod has come or gone; the kubelet limits the rate.
    pod_resources_interval_ns: int = 5 * _SECOND
    condition: ConditionSettings = field(default_factory=ConditionSettings)


def read_gpu_settings(node: Node) -> GpuSettings:
    """Settings out of the section. Raises: ConfigError with the place for a wrong value or an unknown field."""
    defaults = GpuSettings()
    fields = Fields(node)
    release = fields.take("release_file", str, None)
    settings = GpuSettings(
        interval_ns=fields.take("interval", duration, defaults.interval_ns),
        slow_interval_ns=fields.take("slow_interval", duration, defaults.slow_interval_ns),
        deadline_ns=fields.take("deadline", duration, defaults.deadline_ns),
        start_deadline_ns=fields.take("start_deadline", duration, defaults.start_deadline_ns),
        retry_ns=fields.take("retry", duration, defaults.retry_ns),
        max_retry_ns=fields.take("max_retry", duration, defaults.max_retry_ns),
        absent_retry_ns=fields.take("absent_retry", duration, defaults.absent_retry_ns),
        exit_after_unknown=fields.take("exit_after_unknown_errors", int, defaults.exit_after_unknown),
        release_file=Path(release) if release is not None else None,
        pod_resources_socket=Path(fields.take("pod_resources_socket", str, str(defaults.pod_resources_socket))),
        pod_resources_interval_ns=fields.take("pod_resources_interval", duration, defaults.pod_resources_interval_ns),
        condition=fields.take("condition", _condition, defaults.condition),
    )
    fields.finish()
    return settings


def _condition(node: Node) -> ConditionSettings:
    defaults = ConditionSettings()
    fields = Fields(node)
    settings = ConditionSettings(
        observe_only=fields.take("observe_only", bool, defaults.observe_only),
        drain_lost=fields.take("drain_lost", bool, defaults.drain_lost),
        drain_row_remap_failure=fields.take("drain_row_remap_failure", bool, defaults.drain_row_remap_failure),
        drain_xid=fields.take("drain_xid", bool, defaults.drain_xid),
        ecc_uncorrectable=fields.take("ecc_uncorrectable", int, defaults.ecc_uncorrectable),
        heal_after_ns=fields.take("heal_after", duration, defaults.heal_after_ns),
        xid_also=fields.take("xid_also", _codes, defaults.xid_also),
        xid_ignore=fields.take("xid_ignore", _codes, defaults.xid_ignore),
        xid_hold_ns=fields.take("xid_hold", duration, defaults.xid_hold_ns),
        xid_reset_hold_ns=fields.take("xid_reset_hold", duration, defaults.xid_reset_hold_ns),
        slowdown_min=fields.take("slowdown_min", float, defaults.slowdown_min),
        slowdown_max=fields.take("slowdown_max", float, defaults.slowdown_max),
        slowdown_after_ns=fields.take("slowdown_after", duration, defaults.slowdown_after_ns),
        slowdown_clear_ns=fields.take("slowdown_clear", duration, defaults.slowdown_clear_ns),
        slowdown_power_cap=fields.take("slowdown_power_cap", bool, defaults.slowdown_power_cap),
    )
    fields.finish()
    if not 1 <= settings.slowdown_min <= settings.slowdown_max:
        raise node.error("slowdown_min must be 1 or more and no more than slowdown_max")
    return settings


def _codes(node: Node) -> frozenset[int]:
    codes = [item.plain() for item in node.items()]
    if not all(isinstance(code, int) and not isinstance(code, bool) and code > 0 for code in codes):
        raise node.error("expected a list of XID codes, such as [79, 94]")
    return frozenset(codes)

"""Every metric family that is exported from the snapshot. `docs/metrics.md` lists the same; a test compares the two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter"]


@dataclass(frozen=True, slots=True)
class Family:
    """One family. `column` is the snapshot's column that it shows, `labels` are fixed ones beside those of the row."""

    name: str
    kind: Kind
    help: str
    column: str
    labels: str = ""


def _gauge(name: str, column: str, text: str, labels: str = "") -> Family:
    return Family(name, "gauge", text, column, labels)


def _counter(name: str, column: str, text: str, labels: str = "") -> Family:
    return Family(name, "counter", text, column, labels)


#: Families of one name stand together: Prometheus wants a family's samples in one block.
ENDPOINT = (
    _gauge("zerohop_endpoint_requests_waiting", "waiting", "Requests queued in the model server"),
    _gauge("zerohop_endpoint_requests_running", "running", "Requests in the engine's batch"),
    _gauge("zerohop_endpoint_kv_cache_usage_ratio", "kv_cache_usage", "Share of the KV cache in use"),
    _gauge("zerohop_endpoint_kv_cache_capacity_tokens", "kv_capacity_tokens", "Tokens that fit into the KV cache"),
    _gauge("zerohop_endpoint_kv_cache_block_size_tokens", "block_size", "Tokens per KV cache block"),
    _gauge("zerohop_endpoint_max_model_len_tokens", "max_model_len", "Longest context that the server accepts"),
    _gauge("zerohop_endpoint_adapters", "lora_count", "LoRA adapters with a request in flight"),
    _gauge("zerohop_endpoint_adapters_max", "lora_max", "LoRA adapters that fit at a time"),
    _gauge("zerohop_endpoint_prompt_tokens_per_second", "prompt_tokens_rate", "Prompt tokens per second, over 2 s"),
    _gauge(
        "zerohop_endpoint_generation_tokens_per_second",
        "generation_tokens_rate",
        "Generated tokens per second, over 2 s",
    ),
    _gauge(
        "zerohop_endpoint_time_to_first_token_mean_seconds",
        "ttft_mean_s",
        "Mean time to first token, over 10 s or more",
    ),
    _gauge(
        "zerohop_endpoint_inter_token_latency_mean_seconds", "itl_mean_s", "Mean inter-token latency, over 10 s or more"
    ),
    _gauge("zerohop_endpoint_scrape_interval_seconds", "scrape_interval_s", "Interval at which it is read now"),
    _gauge("zerohop_endpoint_gpu_utilization_ratio", "gpu_utilization", "Mean utilisation of its GPUs"),
    _gauge("zerohop_endpoint_gpu_memory_ratio", "gpu_memory", "Largest share of memory in use among its GPUs"),
    _gauge("zerohop_endpoint_slowdown_ratio", "slowdown", "Full clock over the clock now, 1 = full speed"),
    _counter("zerohop_endpoint_prompt_tokens_total", "prompt_tokens", "Prompt tokens since the engine started"),
    _counter("zerohop_endpoint_generation_tokens_total", "generation_tokens", "Tokens since the engine started"),
    _counter(
        "zerohop_endpoint_prefix_cache_query_tokens_total", "prefix_queries", "Tokens looked up in the prefix cache"
    ),
    _counter("zerohop_endpoint_prefix_cache_hit_tokens_total", "prefix_hits", "Tokens found in the prefix cache"),
    _counter("zerohop_endpoint_preemptions_total", "preemptions", "Preemptions since the engine started"),
    _counter("zerohop_endpoint_steps_total", "steps", "Engine steps since the engine started"),
)

GPU = (
    _gauge("zerohop_gpu_utilization_ratio", "utilization", "Share of time in which a kernel ran"),
    _gauge("zerohop_gpu_memory_utilization_ratio", "memory_utilization", "Share of time in which memory was accessed"),
    _gauge("zerohop_gpu_memory_used_bytes", "memory_used_bytes", "Memory in use"),
    _gauge("zerohop_gpu_memory_total_bytes", "memory_total_bytes", "Memory of the board or MIG instance"),
    _gauge("zerohop_gpu_memory_reserved_bytes", "memory_reserved_bytes", "Memory held by the driver"),
    _gauge("zerohop_gpu_power_watts", "power_watts", "Power draw"),
    _gauge("zerohop_gpu_power_limit_watts", "power_limit_watts", "Enforced power limit"),
    _gauge("zerohop_gpu_temperature_celsius", "temperature_celsius", "GPU temperature"),
    _gauge("zerohop_gpu_memory_temperature_celsius", "memory_temperature_celsius", "Memory temperature"),
    _gauge("zerohop_gpu_sm_clock_hertz", "sm_clock_hertz", "SM clock now"),
    _gauge("zerohop_gpu_memory_clock_hertz", "memory_clock_hertz", "Memory clock now"),
    _gauge("zerohop_gpu_sm_clock_max_hertz", "sm_clock_max_hertz", "Highest SM clock"),
    _gauge("zerohop_gpu_memory_clock_max_hertz", "memory_clock_max_hertz", "Highest memory clock"),
    _counter("zerohop_gpu_ecc_errors_total", "ecc_corrected_total", "ECC errors since driver load", 'kind="corrected"'),
    _counter("zerohop_gpu_ecc_errors_total", "ecc_uncorrected_total", "", 'kind="uncorrected"'),
    _gauge("zerohop_gpu_remapped_rows", "remapped_rows_correctable", "Remapped memory rows", 'kind="correctable"'),
    _gauge("zerohop_gpu_remapped_rows", "remapped_rows_uncorrectable", "", 'kind="uncorrectable"'),
    _gauge("zerohop_gpu_retired_pages", "retired_pages", "Retired memory pages (before Ampere)"),
    _gauge("zerohop_gpu_nvlinks", "nvlink_up", "NVLinks by state", 'state="up"'),
    _gauge("zerohop_gpu_nvlinks", "nvlink_down", "", 'state="down"'),
    _counter("zerohop_gpu_nvlink_receive_bytes_total", "nvlink_rx_bytes", "Bytes received over NVLink"),
    _counter("zerohop_gpu_nvlink_transmit_bytes_total", "nvlink_tx_bytes", "Bytes sent over NVLink"),
    _counter("zerohop_gpu_pcie_replays_total", "pcie_replay_total", "PCIe replays"),
    _counter("zerohop_gpu_energy_joules_total", "energy_joules", "Energy since the driver was loaded"),
    _gauge("zerohop_gpu_processes", "processes", "Compute processes"),
    _counter("zerohop_gpu_xid_errors_total", "xid_count", "XID errors since the agent started"),
)

HOST = (
    _gauge("zerohop_host_cpu_ratio", "cpu_ratio", "Share of all cores in use"),
    _gauge("zerohop_host_load1", "load1", "Load average over 1 minute"),
    _gauge("zerohop_host_load5", "load5", "Load average over 5 minutes"),
    _gauge("zerohop_host_load15", "load15", "Load average over 15 minutes"),
    _gauge("zerohop_host_memory_total_bytes", "memory_total_bytes", "Memory of the host"),
    _gauge("zerohop_host_memory_available_bytes", "memory_available_bytes", "Memory available without swapping"),
    _gauge("zerohop_host_swap_used_bytes", "swap_used_bytes", "Swap in use"),
    _gauge(
        "zerohop_host_pressure_ratio", "pressure_cpu_some_avg10", "Share of 10 s in which tasks waited for it",
        'resource="cpu",kind="some"',
    ),
    _gauge("zerohop_host_pressure_ratio", "pressure_memory_some_avg10", "", 'resource="memory",kind="some"'),
    _gauge("zerohop_host_pressure_ratio", "pressure_memory_full_avg10", "", 'resource="memory",kind="full"'),
    _gauge("zerohop_host_pressure_ratio", "pressure_io_some_avg10", "", 'resource="io",kind="some"'),
    _gauge("zerohop_host_pressure_ratio", "pressure_io_full_avg10", "", 'resource="io",kind="full"'),
    _counter("zerohop_host_network_receive_bytes_total", "network_rx_bytes", "Bytes received, without loopback"),
    _counter("zerohop_host_network_transmit_bytes_total", "network_tx_bytes", "Bytes sent, without loopback"),
    _counter("zerohop_host_disk_read_bytes_total", "disk_read_bytes", "Bytes read from disks"),
    _counter("zerohop_host_disk_written_bytes_total", "disk_write_bytes", "Bytes written to disks"),
    _gauge("zerohop_host_boot_time_seconds", "boot_time_seconds", "Unix time of the boot"),
)  # fmt: skip

#: Families that are computed rather than copied: name, kind, help.
DERIVED = (
    Family("zerohop_endpoint_info", "gauge", "1; name, engine, role and pools of an endpoint", ""),
    Family("zerohop_endpoint_up", "gauge", "1 while the last reading went well, 0 while readings fail", ""),
    Family("zerohop_endpoint_flag", "gauge", "1 while the flag is set: drain, unhealthy, stale, ...", ""),
    Family("zerohop_endpoint_reason", "gauge", "1 for the reason of a drain, a failed reading or a slowdown", ""),
    Family("zerohop_endpoint_value_age_seconds", "gauge", "Age of the load values now", ""),
    Family("zerohop_endpoint_value_age_at_publish_seconds", "gauge", "Age of the load values when published", ""),
    Family("zerohop_endpoint_detail_age_seconds", "gauge", "Age of counters, latencies and adapters now", ""),
    Family("zerohop_endpoint_progress_age_seconds", "gauge", "Time since a token or step counter last moved", ""),
    Family("zerohop_endpoint_picks_total", "counter", "Picks of a live picker worker; absent without one", ""),
    Family("zerohop_endpoint_in_flight", "gauge", "Requests in flight over all live picker workers", ""),
    Family("zerohop_gpu_info", "gauge", "1; name and place of a GPU", ""),
    Family(
        "zerohop_gpu_condition",
        "gauge",
        "1 while the GPU is lost, throttled, waits for a reset, drains its endpoints, ...",
        "",
    ),
    Family("zerohop_gpu_clock_event_reason", "gauge", "1 while the driver names this reason for its clocks", ""),
    Family("zerohop_gpu_xid_last", "gauge", "Code of the last XID error; absent while there was none", ""),
    Family("zerohop_gpu_value_age_seconds", "gauge", "Age of the quickly read values now", ""),
    Family("zerohop_gpu_slow_value_age_seconds", "gauge", "Age of the slowly read values now", ""),
    Family("zerohop_host_value_age_seconds", "gauge", "Age of the host's values now", ""),
    Family("zerohop_snapshot_sequence", "gauge", "Sequence of the snapshot that this page shows", ""),
    Family("zerohop_snapshot_age_seconds", "gauge", "Time since that snapshot was published", ""),
    Family("zerohop_snapshot_endpoints", "gauge", "Endpoints in the snapshot", ""),
    Family("zerohop_snapshot_endpoint_rows", "gauge", "Rows in use or free below the highest one in use", ""),
    Family("zerohop_snapshot_cold_bytes", "gauge", "Size of the cold map", ""),
    Family("zerohop_snapshot_cold_generation", "gauge", "Times that the cold map was replaced", ""),
    Family("zerohop_snapshot_refusals_total", "counter", "Endpoints refused because the table was full", ""),
    Family("zerohop_snapshot_file_bytes", "gauge", "Size of the snapshot file", ""),
)

#: Names of NVML's clocks event (throttle) reasons, by bit.
CLOCK_EVENT_REASONS = (
    (0x1, "idle"),
    (0x2, "applications_clocks"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal"),
    (0x40, "hw_thermal"),
    (0x80, "hw_power_brake"),
    (0x100, "display_clocks"),
)

/* The layout of the files in the shm directory, version 1, as C. The same table in Python is
 * snapshot/zerohop_snapshot/layout.py; a test compiles this header and compares every field.
 *
 * All numbers are little-endian. Times are CLOCK_MONOTONIC nanoseconds, 0 = never. Unknown is NaN in a float column,
 * 0 in a time column, a cleared bit in a flag column.
 *
 * How to read node.snap (one writer, any number of readers, no lock):
 *   1. load `sequence`; 0 means that nothing was published;
 *   2. copy the hot slot number sequence % 3: its header, then row_stride * ZH_ENDPOINT_ROW_BYTES bytes;
 *   3. check that the copied header's `sequence` is the one of step 1 and that `crc32` (the CRC-32 of zlib) is that of
 *      its first 120 bytes followed by the endpoint block; else begin again, at most 3 times, then keep the last copy.
 * The checksum stands in for memory fences. The file is never shrunk; another shape is another inode under the same path.
 */
#ifndef ZEROHOP_SNAPSHOT_H
#define ZEROHOP_SNAPSHOT_H

#include <stdint.h>

#define ZH_LAYOUT_VERSION 1u
#define ZH_MAGIC "ZEROHOP"            /* 8 bytes with its final 0 */
#define ZH_BYTE_ORDER 0x01020304u
#define ZH_HEADER_BYTES 256u
#define ZH_SLOT_HEADER_BYTES 128u
#define ZH_SLOT_COUNT 3u

/* First 128 bytes of every file; `kind` is SNAP, ENGC, PICK, PFXD or SESS. */
struct zh_file_header {
    char magic[8];
    char kind[4];
    uint32_t layout_version;
    uint32_t byte_order;
    uint32_t header_bytes;
    uint64_t file_bytes;
    uint8_t boot_id[16];
    uint64_t pid_namespace;     /* inode of the writer's pid namespace */
    uint32_t writer_pid;
    uint32_t reserved0;
    uint64_t writer_start;      /* clock ticks, field 22 of /proc/PID/stat */
    uint64_t created_wall_ns;   /* CLOCK_REALTIME */
    uint8_t reserved1[48];
};

/* Bytes 128..255 of node.snap. */
struct zh_snap_header {
    uint64_t sequence;          /* stored last, as one aligned word */
    uint32_t endpoint_capacity; /* a multiple of 8 */
    uint32_t gpu_capacity;
    uint64_t cold_capacity_bytes;
    uint32_t slot_count;
    uint32_t endpoint_row_bytes;
    uint32_t gpu_row_bytes;
    uint32_t host_bytes;
    uint64_t row_table_offset;
    uint64_t hot_offset;
    uint64_t hot_slot_bytes;
    uint64_t cold_offset;
    uint8_t reserved[56];
};

/* A hot slot starts with this; the endpoint block follows, and the node block at
 * ZH_SLOT_HEADER_BYTES + endpoint_capacity * ZH_ENDPOINT_ROW_BYTES. */
struct zh_slot_header {
    uint64_t sequence;
    uint64_t published_ns;
    uint64_t wall_ns;           /* CLOCK_REALTIME, for people */
    uint64_t cold_generation;   /* cold slot cold_generation % 3; 0 = no cold map yet */
    uint64_t refusals;
    uint32_t cold_bytes;
    uint32_t cold_crc32;
    uint32_t row_stride;        /* values per endpoint column */
    uint32_t endpoint_count;
    uint32_t gpu_count;
    uint32_t node_crc32;
    uint8_t reserved[56];
    uint32_t crc32;
    uint32_t reserved1;
};

/* Endpoint columns: each is `stride` = row_stride values long. */
#define ZH_ENDPOINT_ROW_BYTES 192u
/* moment that waiting, running and kv_cache_usage describe [ns], unknown: 0 = never */
static inline const uint64_t *zh_endpoint_observed_ns(const uint8_t *block, uint32_t stride)
{
    return (const uint64_t *)(const void *)(block + 0u * (uint64_t)stride);
}
/* last time that a token or step counter moved [ns], unknown: 0 = never */
static inline const uint64_t *zh_endpoint_progress_ns(const uint8_t *block, uint32_t stride)
{
    return (const uint64_t *)(const void *)(block + 8u * (uint64_t)stride);
}
/* moment that counters, latencies and adapters describe [ns], unknown: 0 = never */
static inline const uint64_t *zh_endpoint_detail_observed_ns(const uint8_t *block, uint32_t stride)
{
    return (const uint64_t *)(const void *)(block + 16u * (uint64_t)stride);
}
/* bit i: the endpoint belongs to pool i of the cold map's `pools` [bits], unknown: bit cleared */
static inline const uint64_t *zh_endpoint_pools(const uint8_t *block, uint32_t stride)
{
    return (const uint64_t *)(const void *)(block + 24u * (uint64_t)stride);
}
/* bit i: adapter slot i has a running request [bits], unknown: bit cleared */
static inline const uint64_t *zh_endpoint_lora_running_0(const uint8_t *block, uint32_t stride)
{
    return (const uint64_t *)(const void *)(block + 32u * (uint64_t)stride);
}
/* bit i: adapter slot 64 + i has a running request [bits], unknown: bit cleared */
static inline const uint64_t *zh_endpoint_lora_running_1(const uint8_t *block, uint32_t stride)
{
    return (const uint64_t *)(const void *)(block + 40u * (uint64_t)stride);
}
/* bit i: adapter slot i has a waiting request [bits], unknown: bit cleared */
static inline const uint64_t *zh_endpoint_lora_waiting_0(const uint8_t *block, uint32_t stride)
{
    return (const uint64_t *)(const void *)(block + 48u * (uint64_t)stride);
}
/* bit i: adapter slot 64 + i has a waiting request [bits], unknown: bit cleared */
static inline const uint64_t *zh_endpoint_lora_waiting_1(const uint8_t *block, uint32_t stride)
{
    return (const uint64_t *)(const void *)(block + 56u * (uint64_t)stride);
}
/* prompt tokens since the engine started [tokens], unknown: NaN */
static inline const double *zh_endpoint_prompt_tokens(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 64u * (uint64_t)stride);
}
/* generated tokens since the engine started [tokens], unknown: NaN */
static inline const double *zh_endpoint_generation_tokens(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 72u * (uint64_t)stride);
}
/* tokens looked up in the prefix cache [tokens], unknown: NaN */
static inline const double *zh_endpoint_prefix_queries(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 80u * (uint64_t)stride);
}
/* tokens found in the prefix cache [tokens], unknown: NaN */
static inline const double *zh_endpoint_prefix_hits(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 88u * (uint64_t)stride);
}
/* preemptions since the engine started [1], unknown: NaN */
static inline const double *zh_endpoint_preemptions(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 96u * (uint64_t)stride);
}
/* engine steps since the engine started [1], unknown: NaN */
static inline const double *zh_endpoint_steps(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 104u * (uint64_t)stride);
}
/* life of this row: a reused row has a new one [1], unknown: 0 = row never used */
static inline const uint32_t *zh_endpoint_generation(const uint8_t *block, uint32_t stride)
{
    return (const uint32_t *)(const void *)(block + 112u * (uint64_t)stride);
}
/* Flag [bits], unknown: bit cleared */
static inline const uint32_t *zh_endpoint_flags(const uint8_t *block, uint32_t stride)
{
    return (const uint32_t *)(const void *)(block + 116u * (uint64_t)stride);
}
/* byte 0 DrainReason, 1 UnhealthyReason, 2 SlowdownReason, 3 ValueSource [bytes], unknown: 0 */
static inline const uint32_t *zh_endpoint_reasons(const uint8_t *block, uint32_t stride)
{
    return (const uint32_t *)(const void *)(block + 120u * (uint64_t)stride);
}
/* 0 = this node, else index into the cold map's `origins` [index], unknown: 0 */
static inline const uint32_t *zh_endpoint_origin(const uint8_t *block, uint32_t stride)
{
    return (const uint32_t *)(const void *)(block + 124u * (uint64_t)stride);
}
/* requests queued in the model server [requests], unknown: NaN */
static inline const float *zh_endpoint_waiting(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 128u * (uint64_t)stride);
}
/* requests in the engine's batch [requests], unknown: NaN */
static inline const float *zh_endpoint_running(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 132u * (uint64_t)stride);
}
/* share of the KV cache in use [ratio 0..1], unknown: NaN */
static inline const float *zh_endpoint_kv_cache_usage(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 136u * (uint64_t)stride);
}
/* 1 = full speed; 2 = the GPU runs at half of its clock [factor >= 1], unknown: NaN */
static inline const float *zh_endpoint_slowdown(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 140u * (uint64_t)stride);
}
/* adapters with a request in flight [adapters], unknown: NaN */
static inline const float *zh_endpoint_lora_count(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 144u * (uint64_t)stride);
}
/* adapters that fit at a time [adapters], unknown: NaN */
static inline const float *zh_endpoint_lora_max(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 148u * (uint64_t)stride);
}
/* tokens that fit into the KV cache [tokens], unknown: NaN */
static inline const float *zh_endpoint_kv_capacity_tokens(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 152u * (uint64_t)stride);
}
/* tokens per KV cache block [tokens], unknown: NaN */
static inline const float *zh_endpoint_block_size(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 156u * (uint64_t)stride);
}
/* longest context that the server accepts [tokens], unknown: NaN */
static inline const float *zh_endpoint_max_model_len(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 160u * (uint64_t)stride);
}
/* prompt tokens per second, lately [tokens/s], unknown: NaN */
static inline const float *zh_endpoint_prompt_tokens_rate(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 164u * (uint64_t)stride);
}
/* generated tokens per second, lately [tokens/s], unknown: NaN */
static inline const float *zh_endpoint_generation_tokens_rate(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 168u * (uint64_t)stride);
}
/* mean time to first token of the last requests [s], unknown: NaN */
static inline const float *zh_endpoint_ttft_mean_s(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 172u * (uint64_t)stride);
}
/* mean inter-token latency of the last tokens [s], unknown: NaN */
static inline const float *zh_endpoint_itl_mean_s(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 176u * (uint64_t)stride);
}
/* interval at which the agent reads this endpoint now [s], unknown: NaN */
static inline const float *zh_endpoint_scrape_interval_s(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 180u * (uint64_t)stride);
}
/* mean utilisation of the endpoint's GPUs [ratio 0..1], unknown: NaN */
static inline const float *zh_endpoint_gpu_utilization(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 184u * (uint64_t)stride);
}
/* largest memory share in use among the endpoint's GPUs [ratio 0..1], unknown: NaN */
static inline const float *zh_endpoint_gpu_memory(const uint8_t *block, uint32_t stride)
{
    return (const float *)(const void *)(block + 188u * (uint64_t)stride);
}

/* GPU columns, at the start of the node block: each is `stride` = gpu_capacity values long. */
#define ZH_GPU_ROW_BYTES 240u
/* moment that utilisation, memory, power, temperature and clocks describe [ns], unknown: 0 = never */
static inline const uint64_t *zh_gpu_observed_ns(const uint8_t *block, uint32_t stride)
{
    return (const uint64_t *)(const void *)(block + 0u * (uint64_t)stride);
}
/* moment that the slowly read values describe (ECC, rows, links, energy) [ns], unknown: 0 = never */
static inline const uint64_t *zh_gpu_slow_observed_ns(const uint8_t *block, uint32_t stride)
{
    return (const uint64_t *)(const void *)(block + 8u * (uint64_t)stride);
}
/* NVML clocks event (throttle) reasons [bits], unknown: bit cleared */
static inline const uint64_t *zh_gpu_clock_event_reasons(const uint8_t *block, uint32_t stride)
{
    return (const uint64_t *)(const void *)(block + 16u * (uint64_t)stride);
}
/* share of time in which a kernel ran [ratio 0..1], unknown: NaN */
static inline const double *zh_gpu_utilization(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 24u * (uint64_t)stride);
}
/* share of time in which memory was read or written [ratio 0..1], unknown: NaN */
static inline const double *zh_gpu_memory_utilization(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 32u * (uint64_t)stride);
}
/* memory in use [bytes], unknown: NaN */
static inline const double *zh_gpu_memory_used_bytes(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 40u * (uint64_t)stride);
}
/* memory of the board [bytes], unknown: NaN */
static inline const double *zh_gpu_memory_total_bytes(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 48u * (uint64_t)stride);
}
/* memory held by the driver [bytes], unknown: NaN */
static inline const double *zh_gpu_memory_reserved_bytes(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 56u * (uint64_t)stride);
}
/* power draw [W], unknown: NaN */
static inline const double *zh_gpu_power_watts(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 64u * (uint64_t)stride);
}
/* enforced power limit [W], unknown: NaN */
static inline const double *zh_gpu_power_limit_watts(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 72u * (uint64_t)stride);
}
/* GPU temperature [degrees Celsius], unknown: NaN */
static inline const double *zh_gpu_temperature_celsius(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 80u * (uint64_t)stride);
}
/* memory temperature [degrees Celsius], unknown: NaN */
static inline const double *zh_gpu_memory_temperature_celsius(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 88u * (uint64_t)stride);
}
/* SM clock now [Hz], unknown: NaN */
static inline const double *zh_gpu_sm_clock_hertz(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 96u * (uint64_t)stride);
}
/* memory clock now [Hz], unknown: NaN */
static inline const double *zh_gpu_memory_clock_hertz(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 104u * (uint64_t)stride);
}
/* highest SM clock [Hz], unknown: NaN */
static inline const double *zh_gpu_sm_clock_max_hertz(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 112u * (uint64_t)stride);
}
/* highest memory clock [Hz], unknown: NaN */
static inline const double *zh_gpu_memory_clock_max_hertz(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 120u * (uint64_t)stride);
}
/* corrected ECC errors, volatile [errors], unknown: NaN */
static inline const double *zh_gpu_ecc_corrected_total(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 128u * (uint64_t)stride);
}
/* uncorrected ECC errors, volatile [errors], unknown: NaN */
static inline const double *zh_gpu_ecc_uncorrected_total(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 136u * (uint64_t)stride);
}
/* rows remapped for corrected errors [rows], unknown: NaN */
static inline const double *zh_gpu_remapped_rows_correctable(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 144u * (uint64_t)stride);
}
/* rows remapped for uncorrected errors [rows], unknown: NaN */
static inline const double *zh_gpu_remapped_rows_uncorrectable(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 152u * (uint64_t)stride);
}
/* retired pages (before Ampere) [pages], unknown: NaN */
static inline const double *zh_gpu_retired_pages(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 160u * (uint64_t)stride);
}
/* NVLinks that are active [links], unknown: NaN */
static inline const double *zh_gpu_nvlink_up(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 168u * (uint64_t)stride);
}
/* NVLinks that are not [links], unknown: NaN */
static inline const double *zh_gpu_nvlink_down(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 176u * (uint64_t)stride);
}
/* received over NVLink [bytes], unknown: NaN */
static inline const double *zh_gpu_nvlink_rx_bytes(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 184u * (uint64_t)stride);
}
/* sent over NVLink [bytes], unknown: NaN */
static inline const double *zh_gpu_nvlink_tx_bytes(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 192u * (uint64_t)stride);
}
/* PCIe replays [1], unknown: NaN */
static inline const double *zh_gpu_pcie_replay_total(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 200u * (uint64_t)stride);
}
/* energy since the driver was loaded [J], unknown: NaN */
static inline const double *zh_gpu_energy_joules(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 208u * (uint64_t)stride);
}
/* compute processes [1], unknown: NaN */
static inline const double *zh_gpu_processes(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 216u * (uint64_t)stride);
}
/* GpuFlag [bits], unknown: bit cleared */
static inline const uint32_t *zh_gpu_flags(const uint8_t *block, uint32_t stride)
{
    return (const uint32_t *)(const void *)(block + 224u * (uint64_t)stride);
}
/* last XID error [code], unknown: 0 = none seen */
static inline const uint32_t *zh_gpu_xid_last(const uint8_t *block, uint32_t stride)
{
    return (const uint32_t *)(const void *)(block + 228u * (uint64_t)stride);
}
/* XID errors since the agent started [1], unknown: 0 = none seen */
static inline const uint32_t *zh_gpu_xid_count(const uint8_t *block, uint32_t stride)
{
    return (const uint32_t *)(const void *)(block + 232u * (uint64_t)stride);
}
/* keeps the row a multiple of 8 bytes [-], unknown: 0 */
static inline const uint32_t *zh_gpu_reserved(const uint8_t *block, uint32_t stride)
{
    return (const uint32_t *)(const void *)(block + 236u * (uint64_t)stride);
}

/* The host, behind the GPU columns of the node block: pass stride 1. */
/* One value each. */
#define ZH_HOST_BYTES 144u
/* moment that the host's values describe [ns], unknown: 0 = never */
static inline const uint64_t *zh_host_observed_ns(const uint8_t *block, uint32_t stride)
{
    return (const uint64_t *)(const void *)(block + 0u * (uint64_t)stride);
}
/* share of all cores in use [ratio 0..1], unknown: NaN */
static inline const double *zh_host_cpu_ratio(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 8u * (uint64_t)stride);
}
/* load average over 1 minute [1], unknown: NaN */
static inline const double *zh_host_load1(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 16u * (uint64_t)stride);
}
/* load average over 5 minutes [1], unknown: NaN */
static inline const double *zh_host_load5(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 24u * (uint64_t)stride);
}
/* load average over 15 minutes [1], unknown: NaN */
static inline const double *zh_host_load15(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 32u * (uint64_t)stride);
}
/* memory of the host [bytes], unknown: NaN */
static inline const double *zh_host_memory_total_bytes(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 40u * (uint64_t)stride);
}
/* memory that can be given out without swapping [bytes], unknown: NaN */
static inline const double *zh_host_memory_available_bytes(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 48u * (uint64_t)stride);
}
/* swap in use [bytes], unknown: NaN */
static inline const double *zh_host_swap_used_bytes(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 56u * (uint64_t)stride);
}
/* PSI, cpu some, 10 s [ratio 0..1], unknown: NaN */
static inline const double *zh_host_pressure_cpu_some_avg10(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 64u * (uint64_t)stride);
}
/* PSI, memory some, 10 s [ratio 0..1], unknown: NaN */
static inline const double *zh_host_pressure_memory_some_avg10(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 72u * (uint64_t)stride);
}
/* PSI, memory full, 10 s [ratio 0..1], unknown: NaN */
static inline const double *zh_host_pressure_memory_full_avg10(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 80u * (uint64_t)stride);
}
/* PSI, io some, 10 s [ratio 0..1], unknown: NaN */
static inline const double *zh_host_pressure_io_some_avg10(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 88u * (uint64_t)stride);
}
/* PSI, io full, 10 s [ratio 0..1], unknown: NaN */
static inline const double *zh_host_pressure_io_full_avg10(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 96u * (uint64_t)stride);
}
/* received on all interfaces but loopback [bytes], unknown: NaN */
static inline const double *zh_host_network_rx_bytes(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 104u * (uint64_t)stride);
}
/* sent on all interfaces but loopback [bytes], unknown: NaN */
static inline const double *zh_host_network_tx_bytes(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 112u * (uint64_t)stride);
}
/* read from disks [bytes], unknown: NaN */
static inline const double *zh_host_disk_read_bytes(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 120u * (uint64_t)stride);
}
/* written to disks [bytes], unknown: NaN */
static inline const double *zh_host_disk_write_bytes(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 128u * (uint64_t)stride);
}
/* Unix time of the boot [s], unknown: NaN */
static inline const double *zh_host_boot_time_seconds(const uint8_t *block, uint32_t stride)
{
    return (const double *)(const void *)(block + 136u * (uint64_t)stride);
}

enum zh_flag {
    ZH_FLAG_USED = 1,
    ZH_FLAG_DRAIN = 2,
    ZH_FLAG_UNHEALTHY = 4,
    ZH_FLAG_STALE = 8,
    ZH_FLAG_SLEEPING = 16,
    ZH_FLAG_OVERLOADED = 32,
    ZH_FLAG_STUCK = 64,
    ZH_FLAG_PLUGIN = 128,
    ZH_FLAG_SLOWED = 256,
};

enum zh_gpu {
    ZH_GPU_USED = 1,
    ZH_GPU_LOST = 2,
    ZH_GPU_MIG = 4,
    ZH_GPU_UNIFIED_MEMORY = 8,
    ZH_GPU_REMAP_PENDING = 16,
    ZH_GPU_REMAP_FAILED = 32,
    ZH_GPU_RETIRED_PENDING = 64,
    ZH_GPU_RESET_REQUIRED = 128,
    ZH_GPU_THROTTLED = 256,
    ZH_GPU_DRAIN = 512,
    ZH_GPU_SLOWED = 1024,
};

enum zh_drain {
    ZH_DRAIN_NONE = 0,
    ZH_DRAIN_CONFIG = 1,
    ZH_DRAIN_POD_TERMINATING = 2,
    ZH_DRAIN_GPU_LOST = 3,
    ZH_DRAIN_ECC_UNCORRECTABLE = 4,
    ZH_DRAIN_ROW_REMAP_FAILURE = 5,
    ZH_DRAIN_XID = 6,
    ZH_DRAIN_ADMIN = 7,
};

enum zh_unhealthy {
    ZH_UNHEALTHY_NONE = 0,
    ZH_UNHEALTHY_NEVER_SCRAPED = 1,
    ZH_UNHEALTHY_REFUSED = 2,
    ZH_UNHEALTHY_TIMEOUT = 3,
    ZH_UNHEALTHY_HTTP_STATUS = 4,
    ZH_UNHEALTHY_NOT_METRICS = 5,
    ZH_UNHEALTHY_ENGINE_UNKNOWN = 6,
    ZH_UNHEALTHY_DEAD = 7,
    ZH_UNHEALTHY_RESET = 8,
    ZH_UNHEALTHY_TOO_LARGE = 9,
};

enum zh_slowdown {
    ZH_SLOWDOWN_NONE = 0,
    ZH_SLOWDOWN_THERMAL = 1,
    ZH_SLOWDOWN_POWER_BRAKE = 2,
    ZH_SLOWDOWN_POWER_CAP = 3,
    ZH_SLOWDOWN_HW_SLOWDOWN = 4,
};

enum zh_source {
    ZH_SOURCE_NONE = 0,
    ZH_SOURCE_SCRAPE = 1,
    ZH_SOURCE_PLUGIN = 2,
    ZH_SOURCE_BUS = 3,
};

#endif

"""vLLM 0.6 to 0.33, V0 and V1 engine.

Source: `vllm/v1/metrics/loggers.py`, `vllm/engine/metrics.py` of the released wheels; 0.33.0 is the newest read.
"""

from __future__ import annotations

from zerohop_agent.modelserver.mapping import EngineMapping, LabelProduct, LabelValue, Names, Pick, Total

# V1 prints one series per data-parallel engine; every CacheConfig attribute is a label of it.
CACHE_CONFIG = Pick("vllm:cache_config_info")
# One series per combination of adapters ever seen; the value is the time of its last update.
LORA = Pick("vllm:lora_requests_info")

MAPPING = EngineMapping(
    name="vllm",
    prefixes=("vllm:", "ray_vllm:"),
    fields={
        "waiting": (Total(Pick("vllm:num_requests_waiting")),),
        "running": (Total(Pick("vllm:num_requests_running")),),
        # 0.9.2 to 0.10.2 print both names: the new one wins, they are never added.
        "kv_cache_usage": (
            Total(Pick("vllm:kv_cache_usage_perc"), combine="mean"),
            Total(Pick("vllm:gpu_cache_usage_perc"), combine="mean"),
        ),
        "block_size": (LabelValue(CACHE_CONFIG, "block_size"),),
        # The front-end adds the blocks of its engines up and prints the sum in the series of each.
        "num_blocks": (LabelValue(CACHE_CONFIG, "num_gpu_blocks", combine="max"),),
        # From 0.23-0.25 on, and of one engine; blocks x block size can be wrong where several KV groups share the
        # memory.
        "kv_capacity_tokens": (
            LabelValue(CACHE_CONFIG, "kv_cache_size_tokens", combine="sum"),
            LabelProduct(CACHE_CONFIG, ("num_gpu_blocks", "block_size"), combine="max"),
        ),
        "prefix_queries": (
            Total(Pick("vllm:prefix_cache_queries_total")),
            Total(Pick("vllm:gpu_prefix_cache_queries_total")),
        ),
        "prefix_hits": (
            Total(Pick("vllm:prefix_cache_hits_total")),
            Total(Pick("vllm:gpu_prefix_cache_hits_total")),
        ),
        "prompt_tokens": (Total(Pick("vllm:prompt_tokens_total")),),
        "generation_tokens": (Total(Pick("vllm:generation_tokens_total")),),
        "preemptions": (Total(Pick("vllm:num_preemptions_total")),),
        # A histogram in spite of its name: its count is the number of engine steps.
        "steps": (Total(Pick("vllm:iteration_tokens_total_count")),),
        "ttft_sum_s": (Total(Pick("vllm:time_to_first_token_seconds_sum")),),
        "ttft_count": (Total(Pick("vllm:time_to_first_token_seconds_count")),),
        "itl_sum_s": (
            Total(Pick("vllm:inter_token_latency_seconds_sum")),
            Total(Pick("vllm:time_per_output_token_seconds_sum")),
            Total(Pick("vllm:request_time_per_output_token_seconds_sum")),
        ),
        "itl_count": (
            Total(Pick("vllm:inter_token_latency_seconds_count")),
            Total(Pick("vllm:time_per_output_token_seconds_count")),
            Total(Pick("vllm:request_time_per_output_token_seconds_count")),
        ),
        "lora_running": (Names(LORA, ("running_lora_adapters", "running_adapters")),),
        "lora_waiting": (Names(LORA, ("waiting_lora_adapters", "waiting_adapters")),),
        "lora_max": (LabelValue(LORA, "max_lora"),),
        # From 0.12 on. All engines of a server sleep and wake together.
        "sleeping": (Total(Pick("vllm:engine_sleep_state", (("sleep_state", "awake"),)), combine="min"),),
        "process_start_s": (Total(Pick("process_start_time_seconds"), combine="max"),),
    },
    # The front-end answers pages for a while after its engine has died.
    health_path="/health",
    # prometheus_client's own application is mounted there; `/metrics` itself ignores the query.
    narrowable=True,
    expected=("kv_cache_usage", "generation_tokens", "kv_capacity_tokens"),
    source="vllm wheels 0.5.2 to 0.33.0",
)

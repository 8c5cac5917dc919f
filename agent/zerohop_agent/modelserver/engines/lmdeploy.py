"""LMDeploy: vLLM-shaped names with its own prefix, `engine` is the data-parallel rank.

A request waits twice, for a handle of the API server and in the engine; both count.

Source: InternLM/lmdeploy `lmdeploy/metrics/loggers.py`.
"""

from __future__ import annotations

from zerohop_agent.modelserver.mapping import EngineMapping, LabelProduct, LabelValue, Pick, Total

BACKEND_CONFIG = Pick("lmdeploy:backend_config_info")

MAPPING = EngineMapping(
    name="lmdeploy",
    prefixes=("lmdeploy:",),
    fields={
        "waiting": (Total(Pick("lmdeploy:num_requests_waiting"), plus=(Pick("lmdeploy:num_api_requests_waiting"),)),),
        "running": (Total(Pick("lmdeploy:num_requests_running")),),
        "kv_cache_usage": (Total(Pick("lmdeploy:gpu_cache_usage_perc"), combine="mean"),),
        "block_size": (
            LabelValue(BACKEND_CONFIG, "block_size"),
            LabelValue(BACKEND_CONFIG, "cache_block_seq_len"),
        ),
        "num_blocks": (LabelValue(BACKEND_CONFIG, "num_gpu_blocks", combine="sum"),),
        "kv_capacity_tokens": (LabelProduct(BACKEND_CONFIG, ("num_gpu_blocks", "block_size")),),
        "max_model_len": (LabelValue(BACKEND_CONFIG, "session_len"),),
        "prompt_tokens": (Total(Pick("lmdeploy:prompt_tokens_total")),),
        "generation_tokens": (Total(Pick("lmdeploy:generation_tokens_total")),),
        "ttft_sum_s": (Total(Pick("lmdeploy:time_to_first_token_seconds_sum")),),
        "ttft_count": (Total(Pick("lmdeploy:time_to_first_token_seconds_count")),),
        "itl_sum_s": (Total(Pick("lmdeploy:time_per_output_token_seconds_sum")),),
        "itl_count": (Total(Pick("lmdeploy:time_per_output_token_seconds_count")),),
        "process_start_s": (Total(Pick("process_start_time_seconds"), combine="max"),),
    },
    source="InternLM/lmdeploy lmdeploy/metrics/loggers.py",
)

"""TensorRT-LLM's own server, `trtllm-serve`, at `/prometheus/metrics`.

Its `/metrics` is JSON that a reader drains, so it is never scraped. Queue and running gauges exist since 2026; older
releases print request latencies only.

Source: NVIDIA/TensorRT-LLM `tensorrt_llm/metrics/collector.py`.
"""

from __future__ import annotations

from zerohop_agent.modelserver.mapping import EngineMapping, Pick, Ratio, Total

MAPPING = EngineMapping(
    name="trtllm",
    prefixes=("trtllm_",),
    fields={
        "waiting": (Total(Pick("trtllm_num_requests_waiting")),),
        "running": (Total(Pick("trtllm_num_requests_running")),),
        "kv_cache_usage": (
            Total(Pick("trtllm_kv_cache_utilization"), combine="mean"),
            Ratio(Pick("trtllm_kv_cache_used_blocks"), Pick("trtllm_kv_cache_max_blocks")),
        ),
        "block_size": (Total(Pick("trtllm_kv_cache_tokens_per_block"), combine="max"),),
        "num_blocks": (Total(Pick("trtllm_kv_cache_max_blocks")),),
        # Blocks, not tokens; both counters have the same unit, so their ratio is right.
        "prefix_hits": (Total(Pick("trtllm_kv_cache_reused_blocks_total")),),
        "prefix_queries": (
            Total(Pick("trtllm_kv_cache_reused_blocks_total"), plus=(Pick("trtllm_kv_cache_missed_blocks_total"),)),
        ),
        "prompt_tokens": (Total(Pick("trtllm_prompt_tokens_total")),),
        "generation_tokens": (Total(Pick("trtllm_generation_tokens_total")),),
        "ttft_sum_s": (Total(Pick("trtllm_time_to_first_token_seconds_sum")),),
        "ttft_count": (Total(Pick("trtllm_time_to_first_token_seconds_count")),),
        "itl_sum_s": (Total(Pick("trtllm_time_per_output_token_seconds_sum")),),
        "itl_count": (Total(Pick("trtllm_time_per_output_token_seconds_count")),),
        "process_start_s": (Total(Pick("process_start_time_seconds"), combine="max"),),
    },
    metrics_path="/prometheus/metrics",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/metrics/collector.py",
)

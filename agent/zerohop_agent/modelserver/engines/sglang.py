"""SGLang 0.4 to 0.5.23 (`--enable-metrics`).

Every scheduler of a data-parallel server prints its own gauges under `dp_rank`; with
`--enable-metrics-for-all-schedulers`
each tensor- or pipeline-parallel rank repeats them, so those ranks are replicas.

Source: `sglang/srt/metrics/collector.py`, `sglang/srt/observability/metrics_collector.py` of the released wheels.
"""

from __future__ import annotations

from zerohop_agent.modelserver.mapping import EngineMapping, LabelProduct, LabelValue, Pick, Total

# Printed by 0.5.10 only; earlier and later releases have gauges of the same meaning or nothing.
CACHE_CONFIG = Pick("sglang:cache_config_info")

MAPPING = EngineMapping(
    name="sglang",
    prefixes=("sglang:",),
    fields={
        # A request waits for its grammar, for the prefill side's handshake, or for decode memory and transfer before
        # it can
        # run. `num_prefill_inflight_queue_reqs` is left out: its requests have been computed and only their KV is on
        # the way.
        "waiting": (
            Total(
                Pick("sglang:num_queue_reqs"),
                plus=(
                    Pick("sglang:num_grammar_queue_reqs"),
                    Pick("sglang:num_prefill_bootstrap_queue_reqs"),
                    Pick("sglang:num_decode_prealloc_queue_reqs"),
                    Pick("sglang:num_decode_transfer_queue_reqs"),
                ),
            ),
        ),
        "running": (Total(Pick("sglang:num_running_reqs")),),
        "kv_cache_usage": (Total(Pick("sglang:token_usage"), combine="mean"),),
        "block_size": (
            Total(Pick("sglang:page_size"), combine="max"),
            LabelValue(CACHE_CONFIG, "page_size"),
        ),
        "num_blocks": (
            Total(Pick("sglang:num_pages")),
            LabelValue(CACHE_CONFIG, "num_pages", combine="sum"),
        ),
        "kv_capacity_tokens": (
            Total(Pick("sglang:max_total_num_tokens")),
            LabelProduct(CACHE_CONFIG, ("num_pages", "page_size")),
        ),
        "max_model_len": (Total(Pick("sglang:context_len"), combine="max"),),
        # cache_hit_rate is a gauge without a denominator (a percentage in some releases), so hits are the cached tokens
        # and queries the prompt tokens.
        "prefix_queries": (Total(Pick("sglang:prompt_tokens_total")),),
        "prefix_hits": (Total(Pick("sglang:cached_tokens_total")),),
        "prompt_tokens": (Total(Pick("sglang:prompt_tokens_total")),),
        "generation_tokens": (Total(Pick("sglang:generation_tokens_total")),),
        "preemptions": (Total(Pick("sglang:num_retracted_requests_total")),),
        "ttft_sum_s": (Total(Pick("sglang:time_to_first_token_seconds_sum")),),
        "ttft_count": (Total(Pick("sglang:time_to_first_token_seconds_count")),),
        "itl_sum_s": (
            Total(Pick("sglang:inter_token_latency_seconds_sum")),
            Total(Pick("sglang:time_per_output_token_seconds_sum")),
            Total(Pick("sglang:request_time_per_output_token_seconds_sum")),
        ),
        "itl_count": (
            Total(Pick("sglang:inter_token_latency_seconds_count")),
            Total(Pick("sglang:time_per_output_token_seconds_count")),
            Total(Pick("sglang:request_time_per_output_token_seconds_count")),
        ),
        # Slots only: SGLang names no adapter.
        "lora_max": (Total(Pick("sglang:lora_pool_slots_total"), combine="max"),),
        "process_start_s": (Total(Pick("process_start_time_seconds"), combine="max"),),
    },
    replica_labels=frozenset({"pid", "tp_rank", "pp_rank", "moe_ep_rank"}),
    breakdown_labels=frozenset({"priority"}),
    expected=("kv_cache_usage", "generation_tokens"),
    source="sglang wheels 0.4.0 to 0.5.23",
)

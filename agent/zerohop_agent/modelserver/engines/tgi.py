"""Text Generation Inference 3 (in maintenance).

Families appear after their first use, so an idle new server lacks `tgi_queue_size`. There is no KV gauge: the tokens
that the
current batch may reach, over the limit of a batch, stand for it.

Source: huggingface/text-generation-inference `router/src/server.rs`, `backends/v3/src/{queue,backend}.rs`.
"""

from __future__ import annotations

from zerohop_agent.modelserver.mapping import EngineMapping, Pick, Ratio, Total

MAPPING = EngineMapping(
    name="tgi",
    prefixes=("tgi_",),
    fields={
        "waiting": (Total(Pick("tgi_queue_size")),),
        "running": (Total(Pick("tgi_batch_current_size")),),
        "kv_cache_usage": (Ratio(Pick("tgi_batch_current_max_tokens"), Pick("tgi_batch_max_total_tokens")),),
        "kv_capacity_tokens": (Total(Pick("tgi_batch_max_total_tokens"), combine="max"),),
        "generation_tokens": (Total(Pick("tgi_request_generated_tokens_sum")),),
        "prompt_tokens": (Total(Pick("tgi_request_input_length_sum")),),
        "steps": (Total(Pick("tgi_batch_inference_count")),),
        "itl_sum_s": (Total(Pick("tgi_request_mean_time_per_token_duration_sum")),),
        "itl_count": (Total(Pick("tgi_request_mean_time_per_token_duration_count")),),
    },
    source="huggingface/text-generation-inference router/src/server.rs",
)

"""llama.cpp's server (`--metrics`).

The page is answered through the task queue, so it stalls behind a long decode, and reading it often has hung a server
(ggml-org/llama.cpp#29104): never more often than every five seconds. KV gauges went away in May 2025.

Source: ggml-org/llama.cpp tools/server.
"""

from __future__ import annotations

from zerohop_agent.modelserver.mapping import EngineMapping, Pick, Total

MAPPING = EngineMapping(
    name="llamacpp",
    prefixes=("llamacpp:",),
    fields={
        "waiting": (Total(Pick("llamacpp:requests_deferred")),),
        "running": (Total(Pick("llamacpp:requests_processing")),),
        "kv_cache_usage": (Total(Pick("llamacpp:kv_cache_usage_ratio"), combine="mean"),),
        "prefix_hits": (Total(Pick("llamacpp:prompt_tokens_cached_total")),),
        "prefix_queries": (
            Total(Pick("llamacpp:prompt_tokens_cached_total"), plus=(Pick("llamacpp:prompt_tokens_total"),)),
        ),
        "prompt_tokens": (Total(Pick("llamacpp:prompt_tokens_total")),),
        "generation_tokens": (Total(Pick("llamacpp:tokens_predicted_total")),),
        "steps": (Total(Pick("llamacpp:n_decode_total")),),
        "itl_sum_s": (Total(Pick("llamacpp:tokens_predicted_seconds_total")),),
        "itl_count": (Total(Pick("llamacpp:tokens_predicted_total")),),
    },
    floor_interval_s=5.0,
    expected=(),
    source="ggml-org/llama.cpp tools/server",
)

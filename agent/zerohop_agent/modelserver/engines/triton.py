"""Triton inference server with the TensorRT-LLM backend (`:8002/metrics`), and Triton alone.

The backend prints one family whose label holds the real name. Its `fraction` of KV blocks contradicts used/max in
published pages, so the share is computed, as Triton's own ORCA code does. Values are refreshed by the server every
`--metrics-interval-ms` (2 s by default): reading faster than once a second gains nothing.

Source: triton-inference-server/tensorrtllm_backend README, triton-inference-server/server docs/user_guide/metrics.md.
"""

from __future__ import annotations

from zerohop_agent.modelserver.mapping import EngineMapping, Pick, Ratio, Total


def _request(kind: str) -> Pick:
    return Pick("nv_trt_llm_request_metrics", (("request_type", kind),))


def _block(kind: str) -> Pick:
    return Pick("nv_trt_llm_kv_cache_block_metrics", (("kv_cache_block_type", kind),))


MAPPING = EngineMapping(
    name="triton",
    prefixes=("nv_trt_llm_", "nv_inference_"),
    fields={
        "waiting": (Total(_request("waiting")), Total(Pick("nv_inference_pending_request_count"))),
        "running": (Total(_request("scheduled")),),
        "kv_cache_usage": (Ratio(_block("used"), _block("max")),),
        "block_size": (Total(_block("tokens_per"), combine="max"),),
        "num_blocks": (Total(_block("max")),),
        "steps": (Total(Pick("nv_trt_llm_general_metrics", (("general_type", "iteration_counter"),))),),
        "ttft_sum_s": (Total(Pick("nv_inference_first_response_histogram_ms_sum"), scale=0.001),),
        "ttft_count": (Total(Pick("nv_inference_first_response_histogram_ms_count")),),
    },
    floor_interval_s=1.0,
    required=("waiting",),
    expected=("running", "kv_cache_usage"),
    source="triton-inference-server/tensorrtllm_backend README.md; server docs/user_guide/metrics.md",
)

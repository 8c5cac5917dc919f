"""`python -m bench.cells STEP_MS HOST:PORT ...`: one busy engine per address, each with the plugin, as in vLLM.

Steps of the engines are spread evenly. Takes the shm directory from `ZEROHOP_SHM_DIR`, as the plugin does.
"""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace
from typing import Any

from zerohop_engine.vllm import ZerohopStatLogger


def statistics() -> tuple[Any, Any]:
    """What vLLM hands to the plugin after a step of 64 requests with two adapters: scheduler's and iteration's."""
    scheduler = SimpleNamespace(
        num_running_reqs=64, num_waiting_reqs=2, num_skipped_waiting_reqs=0, kv_cache_usage=0.5,
        prefix_cache_stats=SimpleNamespace(queries=10, hits=5),
        running_lora_adapters={"a": 1, "b": 2}, waiting_lora_adapters={"a": 0},
    )  # fmt: skip
    iteration = SimpleNamespace(
        num_generation_tokens=64, num_prompt_tokens=10, num_preempted_reqs=0,
        time_to_first_tokens_iter=[0.1], inter_token_latencies_iter=[0.01] * 64,
    )  # fmt: skip
    return scheduler, iteration


def engine(number: int, address: str | None = None) -> ZerohopStatLogger:
    """The plugin of one engine, started; `address` is the endpoint that it serves."""
    os.environ["ZEROHOP_ENGINE_ID"] = f"bench-{number}"
    if address is not None:
        os.environ["ZEROHOP_ENDPOINT"] = address
    config = SimpleNamespace(cache_config=SimpleNamespace(block_size=16, num_gpu_blocks=1000))
    logger = ZerohopStatLogger(vllm_config=config, engine_indexes=[0])
    logger.log_engine_initialized()
    return logger


def main() -> None:
    """Step until killed."""
    step_s, addresses = float(sys.argv[1]) / 1e3, sys.argv[2:]
    engines = [engine(number, address) for number, address in enumerate(addresses)]
    scheduler, iteration = statistics()
    due_s = time.monotonic()
    while True:
        for one in engines:
            one.record(scheduler, iteration, mm_cache_stats=None, engine_idx=0)
            due_s = max(due_s + step_s / len(engines), time.monotonic() - step_s)
            time.sleep(max(0.0, due_s - time.monotonic()))


if __name__ == "__main__":
    main()

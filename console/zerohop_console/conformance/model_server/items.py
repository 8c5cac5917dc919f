"""The model server protocol, version 1: every item, what it demands, and what routing loses without it."""

from __future__ import annotations

from dataclasses import dataclass

from zerohop_agent.modelserver.settings import PROTOCOL_VERSION
from zerohop_console.conformance.model_server import checks
from zerohop_console.conformance.model_server.checks import Check
from zerohop_console.conformance.model_server.facts import Facts
from zerohop_console.conformance.report import Level, Result

__all__ = ["ITEMS", "PROTOCOL_VERSION", "Item", "judge"]


@dataclass(frozen=True, slots=True)
class Item:
    """One demand of the protocol."""

    name: str
    level: Level
    demands: str
    loses: str
    check: Check


def judge(facts: Facts) -> list[Result]:
    """Return the result of every item, in order."""
    results = []
    for item in ITEMS:
        verdict, found = item.check(facts)
        results.append(Result(item.name, item.level, verdict, item.demands, found, item.loses))
    return results


_MUST, _SHOULD, _MAY = Level.MUST, Level.SHOULD, Level.MAY
ITEMS: tuple[Item, ...] = (
    Item("page/answers", _MUST, "GET on the metrics path answers 200", "every load value", checks.answers),
    Item("page/format", _MUST, "a whole page in Prometheus text or OpenMetrics form", "every load value",
         checks.is_metrics),
    Item("page/engine", _MUST, "the page is a known engine's, and the one that was named", "every load value",
         checks.engine),
    Item("page/content-type", _SHOULD, "Content-Type says text/plain or OpenMetrics",
         "nothing here, but Prometheus 3 refuses the page", checks.content_type),
    Item("page/keep-alive", _SHOULD, "one connection carries many requests",
         "a connection per reading, on both sides", checks.keep_alive),
    Item("page/quick", _SHOULD, "the page takes at most 50 ms at rest",
         "fresh values: a slow page is read less often", checks.quick),
    Item("signals/waiting", _MUST, "requests that wait are counted",
         "the strongest signal of all: picks go by in-flight counts alone", checks.signal("waiting")),
    Item("signals/running", _MUST, "requests that run are counted",
         "stuck detection and the cost of joining a batch", checks.signal("running")),
    Item("signals/kv-cache-usage", _MUST, "the share of the KV cache in use, 0..1",
         "full caches are picked until requests are preempted", checks.signal("kv_cache_usage")),
    Item("signals/kv-capacity", _SHOULD, "the size of the KV cache, in tokens or in blocks",
         "servers of different size count as equal", checks.capacity),
    Item("signals/block-size", _SHOULD, "tokens per KV block",
         "prefix matches are estimated with a default block", checks.signal("block_size")),
    Item("signals/generation-tokens", _SHOULD, "tokens generated, a counter",
         "a server that is stuck looks busy, and speeds are unknown", checks.signal("generation_tokens")),
    Item("signals/prompt-tokens", _SHOULD, "prompt tokens taken in, a counter",
         "prefill speed is unknown", checks.signal("prompt_tokens")),
    Item("signals/prefix-cache", _SHOULD, "tokens looked up and found in the prefix cache, counters",
         "whether affinity pays is unknown", checks.signal("prefix_queries", "prefix_hits")),
    Item("signals/ttft", _SHOULD, "time to first token, sum and count",
         "latency predictions start from defaults", checks.signal("ttft_sum_s", "ttft_count")),
    Item("signals/inter-token", _SHOULD, "time between tokens, sum and count",
         "latency predictions start from defaults", checks.signal("itl_sum_s", "itl_count")),
    Item("signals/preemptions", _MAY, "preempted requests, a counter", "nothing but a diagnosis",
         checks.flag("preemptions")),
    Item("signals/sleep", _MAY, "whether the engine sleeps", "requests wake sleeping engines",
         checks.flag("sleeping")),
    Item("signals/process-start", _MAY, "start of the process",
         "a restart is seen only by counters that fall", checks.flag("process_start_s")),
    Item("server/models", _SHOULD, "GET /v1/models lists the served names",
         "requests are not kept from servers without their model", checks.models),
    Item("server/context", _SHOULD, "the longest context is told", "prompts that are too long are sent there",
         checks.context),
    Item("server/health", _SHOULD, "GET /health answers 200", "a dead engine behind a live page is found later",
         checks.health),
    Item("lora/limit", _MUST, "how many adapters fit at once", "adapter affinity cannot tell full from free",
         checks.lora(("lora_max",))),
    Item("lora/running", _MUST, "adapters with running requests are named",
         "requests are not sent where their adapter is", checks.lora(("lora_running",))),
    Item("lora/waiting", _SHOULD, "adapters with waiting requests are named",
         "adapters about to load are unknown", checks.lora(("lora_waiting",))),
    Item("lora/names", _MUST, "adapters are named as requests name them", "names that match no request",
         checks.lora_names),
    Item("lora/leaves", _SHOULD, "adapters without requests leave the lists", "adapters that look busy",
         checks.lora_goes),
    Item("load/serves", _MUST, "completions are answered", "everything", checks.under_load(checks.serves)),
    Item("load/requests-move", _MUST, "waiting + running rise while requests are served",
         "load is invisible", checks.under_load(checks.busy_seen)),
    Item("load/requests-agree", _SHOULD, "waiting + running come near the number of requests sent",
         "part of the load is invisible", checks.under_load(checks.all_seen)),
    Item("load/kv-moves", _SHOULD, "KV use rises while requests are served", "a gauge that says nothing",
         checks.under_load(checks.kv_moves)),
    Item("load/tokens-move", _SHOULD, "generated tokens are counted as they are sent", "a counter that says nothing",
         checks.under_load(checks.counter_moves("generation_tokens", lambda load: 0.9 * load.chunks))),
    Item("load/ttft-moves", _SHOULD, "first tokens are counted", "a histogram that says nothing",
         checks.under_load(checks.counter_moves("ttft_count", lambda load: load.answered))),
    Item("load/readable", _SHOULD, "the page takes at most 250 ms under load",
         "values that are seconds old when they matter",
         checks.under_load(checks.readable)),
    Item("load/settles", _MUST, "waiting + running return to 0 within 5 s after the last answer",
         "an idle server that looks busy is never picked", checks.under_load(checks.settles)),
    Item("load/settles-after-abort", _SHOULD, "they also do when clients hang up (vllm-project/vllm#29928)",
         "the server is avoided until stuck detection speaks", checks.under_load(checks.settles_after_abort)),
    Item("load/orca", _MAY, "an endpoint-load-metrics header comes when asked for", "nothing: the page says as much",
         checks.under_load(checks.orca)),
)  # fmt: skip

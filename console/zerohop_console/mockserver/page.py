"""What the engine has measured, and vLLM's `/metrics` page of it (the names of vLLM 0.32)."""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerohop_console.mockserver.engine import EngineRequest, EngineSettings

_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
           160.0, 640.0, 2560.0)  # fmt: skip
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
              960.0, 1920.0, 7680.0)  # fmt: skip
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0)
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0)
_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Counts per bucket, their sum and number."""

    def __init__(self, name: str, help_text: str, bounds: tuple[float, ...]) -> None:
        self.name = name
        self._help = help_text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._prefixes: list[str] = []
        self.sum = 0.0
        self.count = 0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self.sum += value
        self.count += 1

    def text(self, labels: str, created_s: float) -> str:
        """Return its lines of the page. `labels` are `name="value",...` without braces, the same at each call."""
        if not self._prefixes:
            self._prefixes = [
                self.name + "_bucket{" + labels.replace("model_name", f'le="{bound}",model_name') + "} "
                for bound in (*self._bounds, "+Inf")
            ]
        total = 0
        lines = [f"# HELP {self.name} {self._help}", f"# TYPE {self.name} histogram"]
        for prefix, count in zip(self._prefixes, self._counts, strict=True):
            total += count
            lines.append(f"{prefix}{total}.0")
        lines.append(
            f"{self.name}_count{{{labels}}} {self.count}.0\n{self.name}_sum{{{labels}}} {self.sum}\n"
            f"# HELP {self.name}_created {self._help}\n# TYPE {self.name}_created gauge\n"
            f"{self.name}_created{{{labels}}} {created_s!r}"
        )
        return "\n".join(lines)


class Measurements:
    """Gauges as of the last step, counters since the start."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.kv_cache_usage = 0.0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.preemptions = 0
        self.steps = 0
        self.sleeping = False
        self.finished = dict.fromkeys(_REASONS, 0)
        #: (running, waiting) adapter lists -> Unix time of last use; vLLM keeps every series it ever had
        self.adapters: dict[tuple[str, str], float] = {}
        self.time_to_first_token = Histogram(
            "vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT_S
        )
        self.inter_token_latency = Histogram(
            "vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _TOKEN_S
        )
        self.iteration_tokens = Histogram(
            "vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", _STEP_TOKENS
        )
        self._per_request = {
            name: Histogram(f"vllm:{name}", f"Histogram of {name.replace('_', ' ')}.", bounds)
            for name, bounds in (
                ("request_prompt_tokens", _TOKENS),
                ("request_generation_tokens", _TOKENS),
                ("request_max_num_generation_tokens", _TOKENS),
                ("request_params_n", _COUNTS),
                ("request_params_max_tokens", _TOKENS),
                ("request_time_per_output_token_seconds", _TOKEN_S),
                ("e2e_request_latency_seconds", _REQUEST_S),
                ("request_queue_time_seconds", _REQUEST_S),
                ("request_inference_time_seconds", _REQUEST_S),
                ("request_prefill_time_seconds", _REQUEST_S),
                ("request_decode_time_seconds", _REQUEST_S),
                ("request_num_preemptions", _COUNTS),
            )
        }

    def finish(self, request: EngineRequest, now_s: float, reason: str) -> None:
        """Count a request that has ended by itself."""
        self.finished[reason] += 1
        decode_s = now_s - request.first_token_s
        for name, value in (
            ("request_prompt_tokens", request.prompt_tokens),
            ("request_generation_tokens", request.generated),
            ("request_max_num_generation_tokens", request.generated),
            ("request_params_n", 1),
            ("request_params_max_tokens", request.max_tokens),
            ("request_time_per_output_token_seconds", decode_s / max(1, request.generated - 1)),
            ("e2e_request_latency_seconds", now_s - request.arrived_s),
            ("request_queue_time_seconds", request.scheduled_s - request.arrived_s),
            ("request_inference_time_seconds", now_s - request.scheduled_s),
            ("request_prefill_time_seconds", request.first_token_s - request.scheduled_s),
            ("request_decode_time_seconds", decode_s),
            ("request_num_preemptions", request.preemptions),
        ):
            self._per_request[name].observe(value)

    def set_adapters(self, running: Iterable[str | None], waiting: Iterable[str | None]) -> None:
        """Note which adapters run and wait now; nothing is noted before the first adapter was seen."""
        key = _joined(running), _joined(waiting)
        if self.adapters or any(key):
            self.adapters[key] = time.time()

    @property
    def histograms(self) -> list[Histogram]:
        """All histograms, in the page's order."""
        return [self.iteration_tokens, self.time_to_first_token, self.inter_token_latency, *self._per_request.values()]


class Page:
    """Renders `/metrics`; `padding_bytes` of HTTP series are added, as real pages have them."""

    def __init__(
        self, model: str, settings: EngineSettings, measurements: Measurements, *, lora: bool, padding_bytes: int = 0
    ) -> None:
        self._settings = settings
        self._measured = measurements
        self._labels = f'engine="0",model_name="{model}"'
        self._lora = lora
        self._started_s = time.time()
        self._padding = _padding(padding_bytes)

    def text(self) -> str:
        """Return the page as it is now."""
        return "\n".join([*self._process(), *self._engine(), *self._histograms(), *self._infos(), self._padding, ""])

    def _process(self) -> Iterator[str]:
        pages = Path("/proc/self/statm").read_text().split()
        yield from _family("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.")
        yield f"process_resident_memory_bytes {int(pages[1]) * os.sysconf('SC_PAGE_SIZE'):.9e}"
        yield from _family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch.")
        yield f"process_start_time_seconds {self._started_s:.12g}"
        yield from _family("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.")
        yield f"process_cpu_seconds_total {time.process_time():.2f}"

    def _engine(self) -> Iterator[str]:
        measured, labels = self._measured, self._labels
        for name, help_text, value in (
            ("num_requests_running", "Number of requests in model execution batches.", measured.running),
            ("num_requests_waiting", "Number of requests waiting to be processed.", measured.waiting),
            ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", measured.kv_cache_usage),
        ):
            yield from _family(f"vllm:{name}", "gauge", help_text)
            yield f"vllm:{name}{{{labels}}} {float(value)!r}"
        yield from _family("vllm:num_requests_waiting_by_reason", "gauge", "Number of requests waiting, by reason.")
        yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {measured.waiting}.0'
        yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} 0.0'
        yield from _family("vllm:engine_sleep_state", "gauge", "Engine sleep state; awake = 1 means engine is awake.")
        for state, on in (
            ("awake", not measured.sleeping),
            ("weights_offloaded", measured.sleeping),
            ("discard_all", False),
        ):
            yield f'vllm:engine_sleep_state{{{labels},sleep_state="{state}"}} {float(on)}'
        for name, help_text, value in (
            (
                "prefix_cache_queries",
                "Prefix cache queries, in tokens.",
                measured.prefix_queries,
            ),
            ("prefix_cache_hits", "Prefix cache hits, in tokens.", measured.prefix_hits),
            ("num_preemptions", "Cumulative number of preemption from the engine.", measured.preemptions),
            ("prompt_tokens", "Number of prefill tokens processed.", measured.prompt_tokens),
            ("generation_tokens", "Number of generation tokens processed.", measured.generation_tokens),
        ):
            yield from _family(f"vllm:{name}_total", "counter", help_text)
            yield f"vllm:{name}_total{{{labels}}} {float(value)!r}"
            yield from _family(f"vllm:{name}_created", "gauge", help_text)
            yield f"vllm:{name}_created{{{labels}}} {self._started_s!r}"
        yield from _family("vllm:request_success_total", "counter", "Count of successfully processed requests.")
        model_label = labels.partition(",")[2]
        for reason, count in measured.finished.items():
            yield f'vllm:request_success_total{{engine="0",finished_reason="{reason}",{model_label}}} {count}.0'

    def _histograms(self) -> Iterator[str]:
        for histogram in self._measured.histograms:
            yield histogram.text(self._labels, self._started_s)

    def _infos(self) -> Iterator[str]:
        settings = self._settings
        if self._lora:
            yield from _family("vllm:lora_requests_info", "gauge", "Running stats on lora requests.")
            for (running, waiting), used_s in self._measured.adapters.items():
                yield (
                    f'vllm:lora_requests_info{{max_lora="{settings.max_loras}",running_lora_adapters="{running}",'
                    f'waiting_lora_adapters="{waiting}"}} {used_s!r}'
                )
        yield from _family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
        yield (
            f'vllm:cache_config_info{{block_size="{settings.block_size}",cache_dtype="auto",'
            f'enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9",'
            f'kv_cache_size_tokens="{settings.num_gpu_blocks * settings.block_size}",'
            f'num_cpu_blocks="None",num_gpu_blocks="{settings.num_gpu_blocks}",num_gpu_blocks_override="None"}} 1.0'
        )


def _family(name: str, kind: str, help_text: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _joined(adapters: Iterable[str | None]) -> str:
    return ",".join(dict.fromkeys(adapter for adapter in adapters if adapter is not None))


def _padding(size_bytes: int) -> str:
    if size_bytes <= 0:
        return ""
    lines = list(_family("http_request_duration_seconds", "histogram", "Latency with only few buckets by handler."))
    size, handler = 0, 0
    while size < size_bytes:
        line = (
            f'http_request_duration_seconds_bucket{{handler="/v1/route/{handler}",le="+Inf",method="POST"}} {handler}.0'
        )
        lines.append(line)
        size += len(line) + 1
        handler += 1
    return "\n".join(lines)

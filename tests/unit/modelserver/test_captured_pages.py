"""Pages of real servers (and of their own metric code), with the values that a person read off them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zerohop_agent.modelserver.page import PageReader
from zerohop_agent.signals import SIGNAL_NAMES, SourceError
from zerohop_snapshot.layout import UnhealthyReason as R

# What every generated vLLM page of one engine has in common.
_VLLM: dict[str, Any] = {
    "waiting": 17, "running": 53, "kv_cache_usage": 0.7711378706014317,
    "block_size": 16, "num_blocks": 27816, "kv_capacity_tokens": 445056,
    "prefix_queries": 189576, "prefix_hits": 95431, "prompt_tokens": 804850, "generation_tokens": 12723,
    "preemptions": 0, "steps": 400, "ttft_sum_s": 101.91164753553765, "ttft_count": 400,
    "itl_sum_s": 9.910655524223245, "itl_count": 400,
}  # fmt: skip
_LORA = {"lora_running": {"sql-lora"}, "lora_waiting": set(), "lora_max": 4}
_AWAKE = {"sleeping": False}

EXPECTED: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm-v0-kubeai": ("vllm", {
        "waiting": 5, "running": 3, "kv_cache_usage": 0.0026235242675994863, "block_size": 16, "num_blocks": 4574,
        "kv_capacity_tokens": 73184, "prompt_tokens": 90, "generation_tokens": 2546, "preemptions": 0,
        "ttft_sum_s": 0.5106480121612549, "ttft_count": 9, "itl_sum_s": 98.35070300102234, "itl_count": 2537,
        "process_start_s": 1.72365683894e9,
    }),
    "vllm-0.9.2-gen-dp1-lora0": ("vllm", {
        **_VLLM, "itl_sum_s": 10.174581057575525, "process_start_s": 1.79605879188e9,
    }),
    "vllm-0.10.2-gen-dp1-lora1": ("vllm", {**_VLLM, **_LORA, "process_start_s": 1.79605879179e9}),
    "vllm-0.11.0-gen-dp1-lora1": ("vllm", {**_VLLM, **_LORA, "process_start_s": 1.79605879171e9}),
    "vllm-0.11.0-multiproc-pid-synthetic": ("vllm", {
        **_VLLM, **_LORA, "kv_cache_usage": 0.6530455880475035, "process_start_s": 1.79605879171e9,
    }),
    "vllm-0.12.0-gen-dp1-lora1": ("vllm", {**_VLLM, **_LORA, **_AWAKE, "process_start_s": 1.79605881637e9}),
    "vllm-0.19.1-gen-dp1-lora1": ("vllm", {**_VLLM, **_LORA, **_AWAKE, "process_start_s": 1.79605881616e9}),
    "vllm-0.33.0-gen-dp1-lora1": ("vllm", {**_VLLM, **_LORA, **_AWAKE, "process_start_s": 1.79605881588e9}),
    "vllm-0.33.0-openmetrics-underscore-gen": ("vllm", {**_VLLM, **_LORA, **_AWAKE, "process_start_s": 1.7960592768e9}),
    "vllm-openmetrics-colon-synthetic": ("vllm", {**_VLLM, **_LORA, **_AWAKE, "process_start_s": 1.7960592768e9}),
    "vllm-0.32.0-cpu-lora-busy": ("vllm", {
        "waiting": 0, "running": 12, "kv_cache_usage": 0.02344894968246214, "block_size": 128, "num_blocks": 2048,
        "kv_capacity_tokens": 262144, "prefix_queries": 192, "prefix_hits": 0, "prompt_tokens": 192,
        "generation_tokens": 4465, "preemptions": 0, "steps": 373, "ttft_sum_s": 1.51185941696167, "ttft_count": 12,
        "itl_sum_s": 21.5025075500007, "itl_count": 4453, "lora_running": {"alpha", "beta"},
        "lora_waiting": {"alpha", "beta"}, "lora_max": 2, "sleeping": False, "process_start_s": 1.79605884453e9,
    }),
    "vllm-0.32.0-cpu-lora-idle": ("vllm", {
        "waiting": 0, "running": 0, "kv_cache_usage": 0, "block_size": 128, "num_blocks": 2048,
        "kv_capacity_tokens": 262144, "prefix_queries": 192, "prefix_hits": 0, "prompt_tokens": 192,
        "generation_tokens": 9600, "preemptions": 0, "steps": 801, "ttft_sum_s": 1.51185941696167, "ttft_count": 12,
        "itl_sum_s": 50.115922671000476, "itl_count": 9588, "lora_running": set(), "lora_waiting": set(), "lora_max": 2,
        "sleeping": False, "process_start_s": 1.79605884453e9,
    }),
    "sglang-docs-2025-11": ("sglang", {
        "waiting": 0, "running": 0, "kv_cache_usage": 0, "prompt_tokens": 7, "prefix_queries": 7,
        "generation_tokens": 8,
        "ttft_sum_s": 0.30457592010498047, "ttft_count": 1, "itl_sum_s": 0.0381757915019989, "itl_count": 1,
    }),
    **dict.fromkeys(("sglang-docs-2026-02", "sglang-docs-2026-07"), ("sglang", {
        "waiting": 2826, "running": 162, "kv_cache_usage": 0.28, "prompt_tokens": 8128902, "prefix_queries": 8128902,
        "generation_tokens": 7557572, "ttft_sum_s": 2351897.9474117756, "ttft_count": 11008,
        "itl_sum_s": 866964.5791549598, "itl_count": 7400757,
    })),
    "sglang-0.5.23-gen-dp2": ("sglang", {
        "waiting": 3, "running": 25, "kv_cache_usage": 0.46, "block_size": 1, "num_blocks": 824690,
        "kv_capacity_tokens": 824690, "max_model_len": 40960, "prefix_queries": 72567, "prefix_hits": 71400,
        "prompt_tokens": 72567, "generation_tokens": 4719, "preemptions": 44, "ttft_sum_s": 24.70270256478436,
        "ttft_count": 80, "itl_sum_s": 29.90590005419252, "itl_count": 80, "lora_max": 8,
    }),
    "trtllm-serve-synthetic": ("trtllm", {
        "waiting": 2, "running": 14, "kv_cache_usage": 0.3711, "block_size": 32, "num_blocks": 12013,
        "prefix_hits": 88120, "prefix_queries": 144460, "prompt_tokens": 1900000, "generation_tokens": 411223,
    }),
    # 1 block of 6239; the page's own "fraction" of 0.4875 is not believed.
    "triton-trtllm-readme": ("triton", {
        "waiting": 1, "running": 1, "kv_cache_usage": 1 / 6239, "block_size": 64, "num_blocks": 6239, "steps": 0,
    }),
    "triton-server-docs": ("triton", {"ttft_sum_s": 10.771, "ttft_count": 37}),
    "tgi-3-synthetic": ("tgi", {
        "waiting": 3, "running": 7, "kv_cache_usage": 14336 / 81920, "kv_capacity_tokens": 81920,
        "prompt_tokens": 152.44, "generation_tokens": 152.44, "steps": 90610, "itl_sum_s": 152.44, "itl_count": 412,
    }),
    "llamacpp-b4000-synthetic": ("llamacpp", {
        "waiting": 1, "running": 2, "kv_cache_usage": 0.42, "prompt_tokens": 18291, "generation_tokens": 5021,
        "steps": 4021, "itl_sum_s": 88.12, "itl_count": 5021,
    }),
    "llamacpp-b6700-synthetic": ("llamacpp", {
        "waiting": 1, "running": 2, "prompt_tokens": 18291, "generation_tokens": 5021, "steps": 4021,
        "itl_sum_s": 88.12, "itl_count": 5021,
    }),
}  # fmt: skip


def page(shared_data: Path, name: str) -> bytes:
    return (shared_data / "metrics" / f"{name}.prom").read_bytes()


@pytest.mark.parametrize("name", EXPECTED)
def test_every_field_of_the_page(shared_data: Path, name: str) -> None:
    engine, expected = EXPECTED[name]
    for configured in (None, engine):
        reader = PageReader(configured)
        for _ in range(3):  # by a survey, then by its plan
            signals = reader.read(page(shared_data, name))
            assert reader.engine is not None
            assert reader.engine.name == engine
            for field in SIGNAL_NAMES:
                value, wanted = getattr(signals, field), expected.get(field)
                assert value == (pytest.approx(wanted) if isinstance(wanted, float) else wanted), field


@pytest.mark.parametrize("name", ["vllm-0.12.0-gen-dp2-lora0", "vllm-0.33.0-gen-dp4-lora0"])
def test_ranks_of_a_real_page(shared_data: Path, name: str) -> None:
    """The expected values are added up here from the lines of the page, by other means than the reader's."""
    lines = page(shared_data, name).decode().splitlines()

    def values(metric: str) -> list[float]:
        return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(metric + "{")]

    ranks = 2 if "dp2" in name else 4
    signals = PageReader().read(page(shared_data, name))
    assert len(values("vllm:num_requests_waiting")) == ranks
    assert signals.waiting == sum(values("vllm:num_requests_waiting"))
    assert signals.running == sum(values("vllm:num_requests_running"))
    assert signals.generation_tokens == sum(values("vllm:generation_tokens_total"))
    assert signals.ttft_count == sum(values("vllm:time_to_first_token_seconds_count"))
    assert signals.kv_cache_usage == pytest.approx(sum(values("vllm:kv_cache_usage_perc")) / ranks)
    # The blocks of all engines stand in the series of each; the size in tokens, where it is printed, is one engine's.
    assert signals.num_blocks == 27816
    assert signals.kv_capacity_tokens == 27816 * 16
    assert signals.lora_running is None
    assert signals.sleeping is False


@pytest.mark.parametrize(
    "name",
    ["dcgm-exporter-mig-4active", "dcgm-exporter-mig-disabled", "dcgm-exporter-mig-empty", "dcgm-exporter-t4-2gpu",
     "dcgm-exporter-readme-blank-sentinel"],
)  # fmt: skip
def test_an_exporters_page_is_no_engines(shared_data: Path, name: str) -> None:
    with pytest.raises(SourceError) as caught:
        PageReader().read(page(shared_data, name).rstrip(b"\n") + b"\n")
    assert caught.value.reason is R.ENGINE_UNKNOWN


def test_no_page_is_left_out(shared_data: Path) -> None:
    names = {path.stem for path in (shared_data / "metrics").glob("*.prom") if not path.stem.startswith("dcgm")}
    assert names == {*EXPECTED, "vllm-0.12.0-gen-dp2-lora0", "vllm-0.33.0-gen-dp4-lora0"}


def test_servers_of_several_processes(shared_data: Path) -> None:
    several = set()
    for name in EXPECTED:
        reader = PageReader()
        reader.read(page(shared_data, name))
        if reader.multi_process:
            several.add(name)
    assert several == {"vllm-0.11.0-multiproc-pid-synthetic", "sglang-0.5.23-gen-dp2"}

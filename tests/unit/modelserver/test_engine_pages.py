"""What each engine calls its metrics, over its releases and over many ranks and processes."""

from __future__ import annotations

import pytest

from unit.modelserver.pages import read
from zerohop_agent.modelserver.page import PageReader, detect


class TestEngines:
    @pytest.mark.parametrize(
        ("line", "engine"),
        [
            ("vllm:x 1", "vllm"),
            ("vllm_x 1", "vllm"),
            ("ray_vllm_x 1", "vllm"),
            ("sglang:x 1", "sglang"),
            ("sglang_x 1", "sglang"),
            ("trtllm_x 1", "trtllm"),
            ("nv_trt_llm_request_metrics 1", "triton"),
            ("nv_inference_count 1", "triton"),
            ("tgi_queue_size 1", "tgi"),
            ("llamacpp:x 1", "llamacpp"),
            ("lmdeploy:x 1", "lmdeploy"),
        ],
    )
    def test_found_from_the_page(self, line: str, engine: str) -> None:
        mapping = detect(f"# HELP a b\n{line}\n".encode())
        assert mapping is not None
        assert mapping.name == engine

    def test_ray_serve_spells_with_its_own_prefix(self) -> None:
        page = 'ray_vllm_num_requests_waiting{WorkerId="1"} 3\nray_vllm_kv_cache_usage_perc{WorkerId="1"} 0.25\n'
        signals = read(page)
        assert (signals.waiting, signals.kv_cache_usage) == (3, 0.25)

    def test_ranks_in_both_orders_give_the_same(self) -> None:
        lines = [
            'vllm:num_requests_running{engine="0",model_name="m"} 0.0',
            'vllm:num_requests_running{engine="1",model_name="m"} 37.0',
            'vllm:num_requests_waiting{engine="0",model_name="m"} 1',
            'vllm:num_requests_waiting{engine="1",model_name="m"} 2',
            'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25',
            'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75',
        ]
        one, other = read("\n".join(lines) + "\n"), read("\n".join(reversed(lines)) + "\n")
        assert one == other
        assert (one.running, one.waiting, one.kv_cache_usage) == (37, 3, 0.5)

    def test_a_rank_without_a_value_makes_the_sum_unknown(self) -> None:
        page = 'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_running{engine="1"} 37\n'
        assert read(page).running is None

    def test_series_per_process_are_one_value(self) -> None:
        lines = [f'vllm:kv_cache_usage_perc{{engine="0",pid="{pid}"}} {0.65 if pid == 3 else 0.0}' for pid in range(8)]
        reader = PageReader()
        assert reader.read(("\n".join(lines) + "\n").encode()).kv_cache_usage == 0.65
        assert reader.multi_process

    def test_a_process_without_a_value_makes_it_unknown_in_any_order(self) -> None:
        lines = ['vllm:kv_cache_usage_perc{pid="1"} NaN\n', 'vllm:kv_cache_usage_perc{pid="2"} 0.5\n']
        assert read("".join(lines)).kv_cache_usage is None
        assert read("".join(lines[::-1])).kv_cache_usage is None

    def test_renamed_metric_old_both_new(self) -> None:
        old, new = 'vllm:gpu_cache_usage_perc{engine="0"} 0.9\n', 'vllm:kv_cache_usage_perc{engine="0"} 0.1\n'
        assert read(old).kv_cache_usage == 0.9
        assert read(new).kv_cache_usage == 0.1
        assert read(old + new).kv_cache_usage == read(new + old).kv_cache_usage == 0.1
        assert read("vllm:num_requests_waiting 1\n").kv_cache_usage is None

    def test_sleep(self) -> None:
        state = 'vllm:engine_sleep_state{{engine="0",sleep_state="{}"}} {}\n'
        assert read(state.format("awake", 1) + state.format("discard_all", 0)).sleeping is False
        assert read(state.format("awake", 0) + state.format("discard_all", 1)).sleeping is True
        assert read("vllm:num_requests_waiting 1\n").sleeping is None

    def test_the_total_of_a_breakdown_counts_once(self) -> None:
        line = 'sglang:num_queue_reqs{{priority="{}",tp_rank="0"}} {}\n'
        assert read(line.format("", 9) + line.format("1", 4) + line.format("2", 5)).waiting == 9
        assert read(line.format("1", 4) + line.format("2", 5)).waiting == 9

    def test_tensor_parallel_ranks_repeat_what_one_says(self) -> None:
        page = "".join(
            f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}"}} {10 + dp}\n'
            for dp in range(2)
            for tp in range(4)
        )
        assert read(page).running == 21

    def test_sglang_queues_are_added(self) -> None:
        page = "sglang:num_queue_reqs 3\nsglang:num_grammar_queue_reqs 1\nsglang:num_decode_transfer_queue_reqs 2\n"
        assert read(page).waiting == 6
        assert read("sglang:num_grammar_queue_reqs 1\n").waiting is None

    def test_sglang_cache_config_of_one_release(self) -> None:
        signals = read('sglang:cache_config_info{page_size="16",num_pages="100"} 1\n')
        assert (signals.block_size, signals.num_blocks, signals.kv_capacity_tokens) == (16, 100, 1600)

    def test_lmdeploy_waits_twice(self) -> None:
        page = 'lmdeploy:num_requests_waiting{engine="0"} 2\nlmdeploy:num_api_requests_waiting{engine="0"} 5\n'
        assert read(page).waiting == 7

    def test_triton_computes_the_share_and_never_divides_by_zero(self) -> None:
        block = 'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{}"}} {}\n'
        fraction = block.format("fraction", 9)
        assert read(block.format("used", 50) + block.format("max", 200) + fraction).kv_cache_usage == 0.25
        assert read(block.format("used", 0) + block.format("max", 0)).kv_cache_usage is None
        assert read(block.format("used", 50)).kv_cache_usage is None

    def test_cache_geometry_before_the_engine_is_ready(self) -> None:
        reader = PageReader()
        early = b'vllm:num_requests_waiting 0\nvllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n'
        late = b'vllm:num_requests_waiting 0\nvllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
        assert reader.read(early).num_blocks is None
        signals = reader.read(late)
        assert (signals.num_blocks, signals.kv_capacity_tokens) == (100, 1600)

    def test_kv_cache_size_is_preferred_to_the_product(self) -> None:
        labels = 'block_size="16",num_gpu_blocks="100",kv_cache_size_tokens="1234"'
        assert read(f"vllm:cache_config_info{{{labels}}} 1\n").kv_capacity_tokens == 1234


class TestAdapters:
    LINE = 'vllm:lora_requests_info{{max_lora="{}",running_lora_adapters="{}",waiting_lora_adapters="{}"}} {}\n'

    def test_the_newest_value_is_current_in_any_order(self) -> None:
        lines = [
            self.LINE.format(4, "a", "b", "1.7960587918291593e+09"),
            self.LINE.format(4, "a,c", "", "1.7960587918293726e+09"),
            self.LINE.format(4, "b", "a", "1.7960587918293107e+09"),
        ]
        for order in (lines, lines[::-1], lines[1:] + lines[:1]):
            signals = read("".join(order))
            assert (signals.lora_running, signals.lora_waiting) == (frozenset({"a", "c"}), frozenset())
            assert signals.lora_max == 4

    def test_an_empty_list_is_no_adapter_and_not_one_without_a_name(self) -> None:
        signals = read(self.LINE.format(2, "", "", 5))
        assert (signals.lora_running, signals.lora_waiting) == (frozenset(), frozenset())

    def test_repeated_names_and_blanks(self) -> None:
        assert read(self.LINE.format(2, "a,a, b,,", "a", 5)).lora_running == frozenset({"a", "b"})

    def test_a_name_without_end_is_no_name(self) -> None:
        assert read(self.LINE.format(2, "a," + "b" * 513, "b" * 2000, 5)).lora_running == frozenset({"a"})

    def test_the_older_spelling(self) -> None:
        page = 'vllm:lora_requests_info{max_lora="2",running_adapters="a",waiting_adapters="b"} 5\n'
        signals = read(page)
        assert (signals.lora_running, signals.lora_waiting) == (frozenset({"a"}), frozenset({"b"}))

    @pytest.mark.parametrize("limit", ["0", "", "None", "-1", "nan", "many"])
    def test_a_limit_that_is_none(self, limit: str) -> None:
        signals = read(self.LINE.format(limit, "a", "a", 5))
        assert (signals.lora_max, signals.lora_running) == (None, frozenset({"a"}))

    def test_no_series_is_unknown_and_not_empty(self) -> None:
        assert read("vllm:num_requests_waiting 1\n").lora_running is None

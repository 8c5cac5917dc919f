"""What a page may look like and still be read right, and what it may look like and must not be believed."""

from __future__ import annotations

import pytest

from unit.modelserver.pages import read, refusal
from zerohop_agent.modelserver.page import PageReader
from zerohop_agent.modelserver.plan import SURVEY_EVERY
from zerohop_agent.signals import SourceError
from zerohop_snapshot.layout import UnhealthyReason as R

NAN_LIKE = ["NaN", "nan", "-nan", "+Inf", "-Inf", "inf", "1e400", "-1", "-1e300", "", "abc", "1_000", "0x10"]
# An int64 and an fp64 "blank", and a 32-bit one.
SENTINELS = ["9223372036854775794", "140737488355328", "4294967295"]


class TestLines:
    @pytest.mark.parametrize(
        "line",
        [
            'vllm:num_requests_waiting{engine="0"} 3',
            'vllm:num_requests_waiting{engine="0"} 3.0',
            'vllm:num_requests_waiting{engine="0",} 3',
            'vllm:num_requests_waiting{ engine = "0" , } 3',
            'vllm:num_requests_waiting {engine="0"}\t3',
            'vllm:num_requests_waiting\t{engine="0"}   3   ',
            "vllm:num_requests_waiting 3",
            "vllm:num_requests_waiting{} 3",
            'vllm:num_requests_waiting{engine="0"} 3 1700074049000',
            'vllm:num_requests_waiting{engine="0"} 3 1700074049.123',
            'vllm:num_requests_waiting{engine="0"} 3 # {trace_id="x} 9"} 0.5 1700074049.1',
            'vllm:num_requests_waiting{m="a}b"} 3',
            'vllm:num_requests_waiting{m="a{b,c=\\"d\\" # \\n \\\\"} 3',
            'vllm:num_requests_waiting{m="größe 模型"} 3',
            'vllm:num_requests_waiting{"quoted.name"="0"} 3',
            "vllm:num_requests_waiting 3e+000",
            "vllm:num_requests_waiting 0.3E1",
            'vllm:num_requests_waiting{engine="0"} 3\r',
        ],
    )
    def test_one_line_in_many_spellings(self, line: str) -> None:
        assert read(f"# HELP x y\n{line}\n").waiting == 3
        assert read(f"{line}\n").waiting == 3

    @pytest.mark.parametrize(
        "line",
        [
            "vllm:num_requests_waiting_by_reason 7",
            "vllm:num_requests_waiting_created 1.7e9",
            "vllm:num_requests_waiting_total 7",
            "xvllm:num_requests_waiting 7",
            " vllm:num_requests_waiting 7",
            "# vllm:num_requests_waiting 7",
            "# TYPE vllm:num_requests_waiting gauge",
            'vllm:num_requests_waiting{engine="0 7',
            "vllm:num_requests_waiting{engine=0} 7",
            "vllm:num_requests_waiting",
            "vllm:num_requests_waiting{}",
            '{"vllm:num_requests_waiting"} 7',
        ],
    )
    def test_lines_that_are_not_it(self, line: str) -> None:
        signals = read(f"{line}\nvllm:num_requests_running 2\n")
        assert (signals.waiting, signals.running) == (None, 2)

    @pytest.mark.parametrize("value", NAN_LIKE + SENTINELS)
    def test_a_value_that_means_nothing_is_unknown_and_spoils_nothing_else(self, value: str) -> None:
        page = "vllm:num_requests_waiting {}\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n"
        signals = read(page.format(value))
        assert (signals.waiting, signals.running, signals.kv_cache_usage) == (None, 2, 0.5)

    @pytest.mark.parametrize(("value", "usage"), [("0", 0), ("1", 1), ("1.02", 1), ("1.2", None), ("87.6", None)])
    def test_a_share_stays_a_share(self, value: str, usage: float | None) -> None:
        assert read(f"vllm:kv_cache_usage_perc {value}\n").kv_cache_usage == usage

    def test_counters_beyond_exact_floats(self) -> None:
        assert read("vllm:prompt_tokens_total 9007199254740993\n").prompt_tokens == 9007199254740992

    def test_crlf_pages(self) -> None:
        page = '# TYPE a gauge\r\nvllm:num_requests_waiting 3\r\nvllm:num_requests_running{a="b"} 4\r\n'
        signals = read(page)
        assert (signals.waiting, signals.running) == (3, 4)

    def test_repeated_help_blocks_and_interleaved_families(self) -> None:
        page = (
            '# TYPE w gauge\nvllm:num_requests_waiting{engine="0"} 1\nvllm:num_requests_running{engine="1"} 5\n'
            '# TYPE w gauge\nvllm:num_requests_waiting{engine="1"} 2\nvllm:num_requests_running{engine="0"} 4\n'
        )
        signals = read(page)
        assert (signals.waiting, signals.running) == (3, 9)

    def test_of_repeated_series_the_larger_load_counts(self) -> None:
        for values in ((3, 8), (8, 3)):
            page = "".join(f'vllm:num_requests_waiting{{engine="0"}} {value}\n' for value in values)
            assert read(page).waiting == 8

    def test_a_hundred_thousand_foreign_lines(self) -> None:
        page = "".join(f"python_gc_{number} 1\n" for number in range(100_000)) + "vllm:num_requests_waiting 3\n"
        assert read(page).waiting == 3


class TestWholeness:
    @pytest.mark.parametrize("page", [b"", b"\n", b"  \r\n\n"])
    def test_empty(self, page: bytes) -> None:
        assert refusal(page) == (R.NOT_METRICS, "the page is empty")

    @pytest.mark.parametrize(
        ("page", "kind"),
        [
            (b"<html><body>502 Bad Gateway</body></html>\n", "HTML"),
            (b"<!DOCTYPE html>", "HTML"),
            (b'{"error": "not found"}', "JSON"),
            (b'[{"iter": 1, "numActiveRequests": 0}]\n', "JSON"),
            (b"\x00\x01\x02\x03\n", "no metrics"),
            (b"not found\n", "no metrics"),
        ],
    )
    def test_other_formats(self, page: bytes, kind: str) -> None:
        reason, detail = refusal(page)
        assert reason is R.NOT_METRICS
        assert kind in detail
        assert refusal(page, engine="vllm")[0] is R.NOT_METRICS

    def test_a_cut_value_is_a_valid_smaller_value_so_a_cut_page_says_nothing(self) -> None:
        whole = b"vllm:num_requests_waiting 3\nvllm:prompt_tokens_total 12345\n"
        for cut in range(1, len(whole)):
            page = whole[:-cut]
            if page.endswith(b"\n"):
                assert PageReader().read(page).waiting == 3
            else:
                assert refusal(page)[0] is R.NOT_METRICS

    def test_an_openmetrics_page_ends_with_eof(self) -> None:
        kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
        body = "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 3\n"
        for end in ("# EOF", "# EOF\n", "# EOF\r\n"):
            assert read(body + end, content_type=kind).waiting == 3
        assert refusal(body.encode(), content_type=kind)[0] is R.NOT_METRICS
        assert read(body, content_type="text/plain").waiting == 3
        assert read(body, content_type="").waiting == 3

    def test_alive_but_no_engine(self) -> None:
        page = b'python_info{version="3.11"} 1\nprocess_open_fds 46\n'
        reason, detail = refusal(page)
        assert reason is R.ENGINE_UNKNOWN
        assert "python_info" in detail

    def test_another_engine_than_configured(self) -> None:
        reason, detail = refusal(b"vllm:num_requests_waiting 3\n", engine="sglang")
        assert reason is R.ENGINE_UNKNOWN
        assert "sglang" in detail
        assert "vllm" in detail

    def test_an_engine_nobody_knows(self) -> None:
        with pytest.raises(ValueError, match="known are vllm"):
            PageReader("nosuch")


class TestRepeatedReading:
    def test_a_page_that_lost_a_field_loses_it_here(self) -> None:
        reader = PageReader()
        assert reader.read(b"vllm:num_requests_waiting 3\nvllm:num_requests_running 1\n").running == 1
        assert reader.read(b"vllm:num_requests_waiting 3\n").running is None
        assert reader.read(b"vllm:num_requests_waiting 3\nvllm:num_requests_running 2\n").running == 2

    def test_new_series_and_moved_lines_are_seen_at_once(self) -> None:
        reader = PageReader()
        assert reader.read(b'vllm:num_requests_waiting{engine="0"} 3\n').waiting == 3
        line = 'vllm:num_requests_waiting{{engine="{}"}} {}\n'
        assert reader.read((line.format(0, 3) + line.format(1, 4)).encode()).waiting == 7
        assert reader.read((line.format(1, 5) + line.format(0, 6)).encode()).waiting == 11
        assert reader.read(b'vllm:num_requests_waiting{engine="1",model_name="new"} 5\n').waiting == 5

    def test_values_of_any_length_keep_their_lines(self) -> None:
        reader = PageReader()
        for value in (0, 7, 123456789, 3, 1.5e300, 12):
            page = "other_metric {0}\nvllm:num_requests_waiting {1}\npython_x {0}\nvllm:num_requests_running 2\n"
            signals = reader.read(page.format(value, value % 1000).encode())
            assert (signals.waiting, signals.running) == (value % 1000, 2)

    def test_a_series_in_the_place_of_another_line_is_seen_before_long(self) -> None:
        reader = PageReader()
        reader.read(b"vllm:num_requests_waiting 3\nvllm:something_else 1\n")
        page = b"vllm:num_requests_waiting 3\nvllm:num_requests_running 1\n"
        seen = [reader.read(page).running for _ in range(SURVEY_EVERY + 1)]
        assert seen[-1] == 1

    def test_a_new_series_between_two_others_is_seen_at_once(self) -> None:
        reader = PageReader()
        before, after = "vllm:num_requests_waiting 3\n", "vllm:num_requests_running 1\n"
        adapters = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="a",waiting_lora_adapters=""} 5\n'
        assert reader.read((before + after).encode()).lora_running is None
        signals = reader.read((before + adapters + after).encode())
        assert (signals.waiting, signals.running, signals.lora_running) == (3, 1, frozenset("a"))

    def test_repeated_series_keep_their_order_when_lines_move(self) -> None:
        reader = PageReader()
        for other in ("1", "1.2345678901234567e+300", "1"):
            page = f"other {other}\nvllm:num_requests_waiting 3\nvllm:num_requests_waiting 8\n"
            assert reader.read(page.encode()).waiting == 8

    def test_lines_that_begin_alike_are_told_apart(self) -> None:
        for values in ((12, 1), (1, 12), (1, 1), (12, 12, 1)):
            lines = [f"vllm:num_requests_waiting {value}\n" for value in values]
            reader = PageReader()
            for _ in range(3):
                assert reader.read("".join([*lines, "vllm:num_requests_running 2\n"]).encode()).waiting == max(values)

    def test_a_longer_name_may_become_the_wanted_one(self) -> None:
        reader = PageReader()
        reader.read(b"vllm:num_requests_waiting_by_reason 1\n")
        seen = [reader.read(b"vllm:num_requests_waiting 1\n").waiting for _ in range(SURVEY_EVERY + 1)]
        assert seen[-1] == 1

    def test_after_a_page_without_any_wanted_series_everything_is_looked_at(self) -> None:
        reader = PageReader()
        reader.read(b"vllm_x 1\n")
        assert reader.read(b"vllm:num_requests_waiting 1\n").waiting == 1
        reader.read(b"vllm_x 1\n")
        with pytest.raises(SourceError):
            reader.read(b"<html />\n")

    def test_the_engine_may_change(self) -> None:
        reader = PageReader()
        reader.read(b"vllm:num_requests_waiting 3\n")
        assert reader.read(b"sglang:num_queue_reqs 4\n").waiting == 4
        assert reader.engine is not None
        assert reader.engine.name == "sglang"

    def test_a_refused_page_does_not_disturb_the_next(self) -> None:
        reader = PageReader()
        page = b"vllm:num_requests_waiting 3\n"
        reader.read(page)
        for bad in (b"", b"<html>\n", b"python_info 1\n", page[:-1]):
            with pytest.raises(SourceError):
                reader.read(bad)
            assert reader.read(page).waiting == 3

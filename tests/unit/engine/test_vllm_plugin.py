"""The plugin as vLLM calls it, with statistics of the shapes of several releases, writing real cells."""

from __future__ import annotations

import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zerohop_engine.vllm import ZerohopStatLogger
from zerohop_engine.whereabouts import bound_ports, network_namespace, own_addresses, port_argument, whereabouts
from zerohop_snapshot import EngineCells, EngineState


@dataclass
class PrefixStats:
    queries: int = 0
    hits: int = 0


@dataclass
class SchedulerStats:
    """As in vLLM 0.32."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_skipped_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: PrefixStats = field(default_factory=PrefixStats)
    running_lora_adapters: dict[str, int] = field(default_factory=dict)
    waiting_lora_adapters: dict[str, int] = field(default_factory=dict)


@dataclass
class IterationStats:
    """As in vLLM 0.32."""

    num_generation_tokens: int = 0
    num_prompt_tokens: int = 0
    num_preempted_reqs: int = 0
    time_to_first_tokens_iter: list[float] = field(default_factory=list)
    inter_token_latencies_iter: list[float] = field(default_factory=list)


def config(**cache: object) -> Any:
    return SimpleNamespace(
        cache_config=SimpleNamespace(**{"block_size": 16, "num_gpu_blocks": 100, **cache}),
        model_config=SimpleNamespace(max_model_len=2048, served_model_name=["base", "alias"], model="m"),
        lora_config=SimpleNamespace(max_loras=4),
        parallel_config=SimpleNamespace(_api_process_rank=0),
    )


@pytest.fixture
def shm_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZEROHOP_SHM_DIR", str(tmp_path / "shm"))
    return tmp_path / "shm"


@pytest.fixture
def plugin(shm_dir: Path) -> Iterator[ZerohopStatLogger]:
    logger = ZerohopStatLogger(vllm_config=config(), engine_indexes=[0])
    logger.log_engine_initialized()
    yield logger
    logger.close()


def state(shm_dir: Path, index: int = 0) -> EngineState:
    return next(each for each in EngineCells(shm_dir).read() if each.fields["engine_index"] == index)


def test_what_is_written(plugin: ZerohopStatLogger, shm_dir: Path) -> None:
    first = state(shm_dir)
    assert (first.fields["waiting"], first.fields["running"], first.fields["steps"]) == (0, 0, 0)
    assert (first.fields["num_blocks"], first.fields["kv_capacity_tokens"], first.fields["lora_max"]) == (100, 1600, 4)
    assert first.fields["max_model_len"] == 2048
    assert (first.text["models"], first.text["engine"]) == (["base", "alias"], "vllm")
    scheduler = SchedulerStats(3, 4, 5, 0.25, PrefixStats(10, 6), {"a": 2, "b": 0}, {"a": 0, "b": 1})
    iteration = IterationStats(7, 11, 1, [0.5], [0.1, 0.2])
    for _ in range(2):
        plugin.record(scheduler, iteration, mm_cache_stats=None, engine_idx=0)
    now = state(shm_dir)
    assert (now.fields["running"], now.fields["waiting"], now.fields["kv_cache_usage"]) == (3, 9, 0.25)
    assert (now.fields["generation_tokens"], now.fields["prompt_tokens"], now.fields["preemptions"]) == (14, 22, 2)
    assert (now.fields["prefix_queries"], now.fields["prefix_hits"], now.fields["steps"]) == (20, 12, 2)
    assert (now.fields["ttft_sum_s"], now.fields["ttft_count"], now.fields["itl_count"]) == (1.0, 2, 4)
    assert now.fields["itl_sum_s"] == pytest.approx(0.6)
    assert (now.text["running"], now.text["waiting"]) == (["a"], ["b"])
    assert now.written_ns > first.written_ns
    plugin.record(SchedulerStats(), IterationStats(), engine_idx=0)
    assert (state(shm_dir).text["running"], state(shm_dir).fields["running"]) == ([], 0)


def test_more_adapters_than_a_cell_holds_are_unknown_until_they_fit(plugin: ZerohopStatLogger, shm_dir: Path) -> None:
    plugin.record(SchedulerStats(running_lora_adapters={"a": 1}), None)
    plugin.record(SchedulerStats(running_lora_adapters={f"{number:0200}": 1 for number in range(100)}), None)
    full = state(shm_dir)
    assert "running" not in full.text
    assert math.isnan(full.fields["lora_max"])
    plugin.record(SchedulerStats(running_lora_adapters={"b": 1}), None)
    assert (state(shm_dir).text["running"], state(shm_dir).fields["lora_max"]) == (["b"], 4)


def test_tokens_of_other_front_ends_do_not_make_old_gauges_new(plugin: ZerohopStatLogger, shm_dir: Path) -> None:
    plugin.record(SchedulerStats(num_running_reqs=3), IterationStats(1))
    before = state(shm_dir)
    plugin.record(None, IterationStats(5), engine_idx=0)
    after = state(shm_dir)
    assert after.fields["generation_tokens"] == 6
    assert after.written_ns == before.written_ns


def test_sleep_and_waking(plugin: ZerohopStatLogger, shm_dir: Path) -> None:
    assert state(shm_dir).fields["sleep_level"] == 0
    plugin.record_sleep_state(1, 2)
    assert state(shm_dir).fields["sleep_level"] == 2
    plugin.record_sleep_state(0, 0)
    assert state(shm_dir).fields["sleep_level"] == 0


def test_several_engines_of_one_process(shm_dir: Path) -> None:
    logger = ZerohopStatLogger(vllm_config=config(num_gpu_blocks=200), engine_indexes=[0, 1])
    logger.log_engine_initialized()
    logger.record(SchedulerStats(num_running_reqs=1), None, engine_idx=0)
    logger.record(SchedulerStats(num_running_reqs=2), None, engine_idx=1)
    logger.record(SchedulerStats(num_running_reqs=9), None, engine_idx=7)
    assert [state(shm_dir, index).fields["running"] for index in (0, 1)] == [1, 2]
    # vLLM adds up the blocks of all engines in the configuration that the front-end sees
    assert [state(shm_dir, index).fields["num_blocks"] for index in (0, 1)] == [100, 100]
    logger.close()
    assert not list(shm_dir.glob("engine-*.cell"))


def test_a_logger_for_one_engine_as_older_releases_make_it(shm_dir: Path) -> None:
    logger = ZerohopStatLogger(config(), 3)
    logger.log_engine_initialized()
    logger.record(SchedulerStats(num_running_reqs=4), IterationStats(), 3)
    assert state(shm_dir, 3).fields["running"] == 4
    logger.close()


def test_two_servers_without_a_port_have_two_cells(shm_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROHOP_ENGINE_ID", "same name/with slash")
    loggers = [ZerohopStatLogger(vllm_config=config(), engine_indexes=[0]) for _ in range(2)]
    for logger in loggers:
        logger.log_engine_initialized()
    assert len(list(EngineCells(shm_dir).read())) == 2
    for logger in loggers:
        logger.close()


class Strange:
    """Statistics of a release that does not exist yet."""

    num_running_reqs = 3
    num_waiting_reqs = 2
    num_generation_tokens = 5
    time_per_output_tokens_iter = (0.1, 0.2)


def test_another_shape_costs_one_line_and_what_is_missing_is_unknown(
    plugin: ZerohopStatLogger, shm_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.record(SchedulerStats(1, 1), IterationStats(10, 10))
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            plugin.record(Strange(), Strange(), engine_idx=0)
    fields = state(shm_dir).fields
    assert (fields["running"], fields["waiting"], fields["generation_tokens"], fields["steps"]) == (3, 2, 25, 4)
    assert fields["itl_count"] == 6
    assert math.isnan(fields["kv_cache_usage"])
    assert math.isnan(fields["prompt_tokens"])
    assert len(caplog.records) == 1
    assert "kv_cache_usage" in caplog.text


@dataclass
class OldSchedulerStats:
    """As in vLLM 0.10.2 and 0.11."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: PrefixStats = field(default_factory=PrefixStats)


@dataclass
class OldIterationStats(IterationStats):
    """As in vLLM 0.10.2 and 0.11."""

    running_lora_adapters: dict[str, int] = field(default_factory=dict)
    waiting_lora_adapters: dict[str, int] = field(default_factory=dict)


def test_the_first_releases_with_plugins(
    plugin: ZerohopStatLogger, shm_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        iteration = OldIterationStats(7, 11, 0, [0.5], [0.1], {"a": 1}, {"b": 1})
        plugin.record(OldSchedulerStats(3, 4, 0.25, PrefixStats(10, 6)), iteration, engine_idx=0)
        plugin.record(None, OldIterationStats(1), engine_idx=0)
        plugin.record(OldSchedulerStats(2, 1, 0.5), None, engine_idx=0)
    now = state(shm_dir)
    assert (now.fields["running"], now.fields["waiting"], now.fields["kv_cache_usage"]) == (2, 1, 0.5)
    assert (now.fields["generation_tokens"], now.fields["prompt_tokens"], now.fields["steps"]) == (16, 22, 4)
    assert (now.fields["prefix_queries"], now.fields["ttft_count"], now.fields["itl_count"]) == (20, 2, 2)
    plugin.record(OldSchedulerStats(), OldIterationStats(1, 0, 0, [], [], {"a": 1}, {"b": 1}))
    assert (state(shm_dir).text["running"], state(shm_dir).text["waiting"]) == (["a"], ["b"])
    assert not caplog.records


@pytest.mark.parametrize("stats", [3, "x", object(), {"num_running_reqs": 1}])
def test_nonsense_never_raises(plugin: ZerohopStatLogger, stats: object, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        plugin.record(stats, stats, engine_idx=0)
        plugin.record(stats, None)
        plugin.record(None, stats)
    assert len(caplog.records) <= 2


@pytest.mark.parametrize("engine_config", [None, 3, SimpleNamespace(), config(block_size=None, num_gpu_blocks="x")])
def test_a_configuration_of_another_shape_is_unknown_geometry(shm_dir: Path, engine_config: Any) -> None:
    logger = ZerohopStatLogger(vllm_config=engine_config, engine_indexes=[0])
    logger.log_engine_initialized()
    logger.record(SchedulerStats(num_running_reqs=2), IterationStats())
    assert state(shm_dir).fields["running"] == 2
    assert math.isnan(state(shm_dir).fields["num_blocks"])
    logger.close()


def test_without_the_variable_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[object] = []
    monkeypatch.setattr(ZerohopStatLogger, "_open", lambda *where: opened.append(where))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ZEROHOP_SHM_DIR", raising=False)
    logger = ZerohopStatLogger(vllm_config=config(), engine_indexes=[0])
    logger.log_engine_initialized()
    logger.record(SchedulerStats(), IterationStats(), engine_idx=0)
    logger.record_sleep_state(1, 1)
    logger.close()
    assert opened == list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_used_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZEROHOP_SHM_DIR", str(tmp_path / "file" / "below"))
    logger = ZerohopStatLogger(vllm_config=config(), engine_indexes=[0])
    logger.log_engine_initialized()
    logger.record(SchedulerStats(), IterationStats(), engine_idx=0)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert str(tmp_path) in warnings[0].getMessage()


def test_what_the_engine_needs_is_in_the_standard_library() -> None:
    code = (
        "import sys, zerohop_engine.vllm\n"
        "allowed = set(sys.stdlib_module_names) | {'zerohop_engine', 'zerohop_snapshot'}\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} - allowed))"
    )
    paths = ["engine", "snapshot"]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(root / path) for path in paths)}
    # -S keeps site-packages with its start-up files out.
    shown = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "['__main__']"


class TestWhereabouts:
    def test_bound_ports_are_found_before_anyone_listens(self) -> None:
        with socket.socket() as bound, socket.create_server(("127.0.0.1", 0)) as listening:
            bound.bind(("127.0.0.1", 0))
            ports = {bound.getsockname()[1], listening.getsockname()[1]}
            assert ports <= set(bound_ports())
            with socket.create_connection(listening.getsockname()) as client:
                assert client.getsockname()[1] not in bound_ports()
        assert not ports & set(bound_ports())

    @pytest.mark.parametrize(
        ("arguments", "port"),
        [
            (["vllm", "serve", "m", "--port", "8001"], 8001),
            (["vllm", "--port=8002", "--port-range", "1"], 8002),
            (["vllm", "--port"], None),
            (["vllm", "--port", "x"], None),
            (["vllm", "--port", "99999"], None),
            ([], None),
        ],
    )
    def test_the_port_of_a_command_line(self, arguments: list[str], port: int | None) -> None:
        assert port_argument(arguments) == port

    def test_endpoints_may_be_named(self) -> None:
        place = whereabouts({"ZEROHOP_ENDPOINT": " 10.0.0.1:80, [fd00::1]:81 ,"}, ["--port", "8123"])
        assert place["endpoints"] == ["10.0.0.1:80", "[fd00::1]:81"]
        assert 8123 in place["ports"]  # type: ignore[operator]
        assert place["netns"] == network_namespace() > 0

    def test_loopback_is_nobody_elses_address(self) -> None:
        assert not {"127.0.0.1", "127.0.1.1", "::1"} & set(own_addresses())

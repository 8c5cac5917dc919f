"""The model server suite against the mock server, and against servers that lack things."""

from __future__ import annotations

import argparse
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from support.processes import Processes, free_port
from zerohop_agent.modelserver.served import ServedModels
from zerohop_agent.signals import Signals
from zerohop_console.conformance.model_server import checks
from zerohop_console.conformance.model_server.facts import Facts, LoadFacts, Sample
from zerohop_console.conformance.model_server.items import ITEMS
from zerohop_console.conformance.model_server.main import add_arguments, run
from zerohop_console.conformance.report import Level, Report, Result, Verdict, as_json, as_junit
from zerohop_process.errors import ConfigError

GOOD = (
    "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1\n'
)


def suite(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    path = tmp_path / "report.json"
    code = run(parser.parse_args([*arguments, "--json", str(path)]))
    return code, {item["name"]: item for item in json.loads(path.read_text())["items"]}


@contextmanager
def serving(pages: dict[str, tuple[int, str, str]]) -> Iterator[str]:
    """Serve fixed answers (status, content type, body) by path."""

    class Answers(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, kind, body = pages.get(self.path, (404, "application/json", "{}"))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def text(body: str) -> tuple[int, str, str]:
    return 200, "text/plain; version=0.0.4", body


def test_the_mock_server_passes_every_item(run: Processes, tmp_path: Path) -> None:
    port = free_port()
    run.zerohop("mock-server", "--listen", f"127.0.0.1:{port}", "--adapter", "sql", "--adapter", "med")
    junit = tmp_path / "report.xml"
    code, items = suite(
        tmp_path, f"127.0.0.1:{port}", "--engine", "vllm", "--load", "--requests", "6", "--max-tokens", "60",
        "--junit", str(junit),
    )  # fmt: skip
    assert {name for name, item in items.items() if item["result"] == "fail"} == set()
    assert {name for name, item in items.items() if item["result"] == "skip"} <= {"load/orca"}
    assert code == 0
    root = ElementTree.fromstring(junit.read_text())  # noqa: S314
    assert sum(int(part.get("tests", "0")) for part in root) == len(ITEMS)
    assert all(part.get("failures") == "0" for part in root)


def test_what_is_missing_is_named_with_what_it_costs(tmp_path: Path) -> None:
    with serving({"/metrics": text("vllm:num_requests_waiting 3\n")}) as url:
        code, items = suite(tmp_path, url)
    assert code == 1
    for name in ("signals/running", "signals/kv-cache-usage"):
        assert items[name]["result"] == "fail"
        assert items[name]["loses"]
    assert "running" in items["signals/running"]["found"]
    assert items["signals/waiting"]["result"] == "pass"
    assert items["server/models"]["result"] == "fail"
    assert items["lora/running"]["result"] == "skip"
    assert items["load/settles"]["result"] == "skip"


def test_only_musts_count_unless_asked(tmp_path: Path) -> None:
    with serving({"/metrics": text(GOOD)}) as url:
        assert suite(tmp_path, url)[0] == 0
        assert suite(tmp_path, url, "--require", "should")[0] == 1


@pytest.mark.parametrize(
    ("answer", "item", "word"),
    [
        ((404, "text/html", "no"), "page/answers", "404"),
        ((200, "text/plain", "<html></html>"), "page/format", "HTML"),
        ((200, "text/plain", ""), "page/format", "empty"),
        ((200, "text/plain", GOOD[:-1]), "page/format", "cut"),
        ((200, "text/plain", "python_info 1\n"), "page/engine", "python_info"),
        ((200, "application/json", GOOD), "page/content-type", "application/json"),
        ((200, "text/plain", GOOD.replace("perc 0", "perc 87")), "signals/kv-cache-usage", "makes no sense"),
    ],
)
def test_wrong_answers_are_told_apart(tmp_path: Path, answer: tuple[int, str, str], item: str, word: str) -> None:
    with serving({"/metrics": answer}) as url:
        _, items = suite(tmp_path, url)
    assert items[item]["result"] == "fail"
    assert word in items[item]["found"]
    earlier = [name for name in items if name.startswith("page/") and items[name]["result"] == "fail"]
    assert earlier == [item] if item.startswith("page/") else earlier == []


def test_another_engine_than_named(tmp_path: Path) -> None:
    with serving({"/metrics": text(GOOD)}) as url:
        code, items = suite(tmp_path, url, "--engine", "sglang")
    assert code == 1
    assert items["page/engine"]["result"] == "fail"
    assert "sglang" in items["page/engine"]["found"]


def test_nobody_there(tmp_path: Path) -> None:
    code, items = suite(tmp_path, f"127.0.0.1:{free_port()}")
    assert code == 1
    assert items["page/answers"]["result"] == "fail"
    assert all(item["result"] in ("fail", "skip") for item in items.values())


def test_completions_that_fail_are_counted(tmp_path: Path) -> None:
    models = (200, "application/json", '{"data":[{"id":"m"}]}')
    with serving({"/metrics": text(GOOD), "/v1/models": models}) as url:
        code, items = suite(tmp_path, url, "--load", "--requests", "2")
    assert code == 1
    assert items["load/serves"]["result"] == "fail"
    assert "500" in items["load/serves"]["found"]
    assert items["load/requests-move"]["result"] == "fail"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["ftp://host"], "no address"),
        (["http://"], "no address"),
        (["http://host:99999"], "no address"),
        (["h:1", "--engine", "vlm"], "known are vllm"),
        (["h:1", "--protocol", "7"], "version 1"),
        (["h:1", "--requests", "0"], "positive"),
        (["h:1", "--metrics-port", "99999"], "no port"),
    ],
)
def test_a_users_mistake_is_a_sentence(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        suite(tmp_path, *arguments)


def sample(at_s: float, **fields: Any) -> Sample:
    return Sample(at_s, 0.001, Signals(**fields))


class TestJudgement:
    """Gauges that lie, which no server here does."""

    def facts(self, **load: Any) -> Facts:
        return Facts(None, "/metrics", status=200, signals=Signals(kv_cache_usage=0.0), load=LoadFacts(**load))

    def test_gauges_that_stay_where_they_were(self) -> None:
        busy = [sample(0, waiting=1, running=5)]
        facts = self.facts(concurrency=6, samples=busy, after=[sample(0, waiting=0, running=5), sample(5, running=5)])
        settles = checks.under_load(checks.settles)
        verdict, found = settles(facts)
        assert verdict is Verdict.FAIL
        assert "still 5" in found
        facts = self.facts(concurrency=6, samples=busy, after=[sample(0, running=5), sample(0.2, running=0, waiting=0)])
        assert settles(facts)[0] is Verdict.PASS

    def test_gauges_that_do_not_move(self) -> None:
        facts = self.facts(concurrency=6, samples=[sample(0, waiting=0, running=0, kv_cache_usage=0.0)])
        for check in (checks.busy_seen, checks.all_seen, checks.kv_moves):
            assert checks.under_load(check)(facts)[0] is Verdict.FAIL

    def test_counters_that_do_not_move(self) -> None:
        moves = checks.under_load(checks.counter_moves("generation_tokens", lambda load: load.chunks))
        facts = self.facts(concurrency=1, chunks=100, samples=[sample(0, generation_tokens=50.0)])
        assert moves(facts)[0] is Verdict.FAIL
        facts = self.facts(concurrency=1, chunks=100, samples=[sample(0, generation_tokens=100.0)])
        assert moves(facts)[0] is Verdict.PASS

    def test_adapters_under_other_names(self) -> None:
        facts = self.facts(concurrency=1, adapters=("a",), samples=[sample(0, lora_running=frozenset({"/path/a"}))])
        facts.models = ServedModels(("m", "a"), ("a",), None)
        assert checks.lora_names(facts)[0] is Verdict.FAIL
        assert checks.lora(("lora_max",))(facts)[0] is Verdict.FAIL


def test_reports_hold_whatever_a_server_says() -> None:
    nasty = "a\x00b\x1b[31m<&>'\"\ud800"
    results = [Result("x", level, verdict, nasty, nasty, nasty) for level in Level for verdict in Verdict]
    report = Report(
        "suite", "1", nasty.replace("\x00", "").replace("\x1b", "").replace("\ud800", ""), results, {"a": None}
    )
    assert json.loads(as_json(report))["items"][0]["found"] == nasty
    root = ElementTree.fromstring(as_junit(report).encode("utf-8", "surrogatepass"))  # noqa: S314
    assert [part.get("failures") for part in root] == ["1", "0", "0"]
    assert report.failed((Level.MUST,))

"""`zerohop agent` as a process: how it starts, what it refuses, how it ends, and how it goes on after a restart."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.processes import Process, Processes, free_port, processes, zerohop_command
from support.waiting import eventually, hold
from zerohop_snapshot import EngineCellWriter
from zerohop_snapshot.layout import DrainReason, Flag, UnhealthyReason
from zerohop_snapshot.reader import SnapshotReader

from .conftest import View

PAGE = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} %d.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
process_start_time_seconds 1.7e+09
"""


class ModelServer:
    """A metrics page and a model list over real HTTP/1.1."""

    def __init__(self) -> None:
        server = self
        self.running = 3
        self.scrapes = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = b'{"data": [{"id": "m"}]}'
                if self.path == "/metrics":
                    server.scrapes += 1
                    body = PAGE % server.running
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    one = ModelServer()
    yield one
    one.close()


@pytest.fixture
def run() -> Iterator[Processes]:
    with processes() as running:
        yield running


def start(run: Processes, shm_dir: Path, *words: str | Path, wait: bool = True) -> Process:
    defaults = ("--gpu", "off", "--metrics-address", "off")
    return run.zerohop("agent", "--shm-dir", shm_dir, *defaults, *words, wait=wait)


def snapshot(shm_dir: Path) -> dict[str, Any]:
    """What `zerohop snapshot --json` says, in this process: a child for each look would cost half a second."""
    reader = SnapshotReader(shm_dir)
    found = reader.read()
    reader.close()
    if found is None or not found.cold:
        return {}
    view = View(found)
    endpoints = [
        {
            "address": facts["address"],
            "row": row,
            "generation": facts["generation"],
            "models": facts["models"],
            "engine": facts["engine"],
            "flags": sorted(view.flags(facts["address"])),
            "reasons": view.reasons(facts["address"]),
            **{name: found.column(name)[row] for name in ("running", "waiting", "kv_cache_usage", "observed_ns")},
        }
        for row, facts in view.cold["endpoints"].items()
    ]
    return {"sequence": found.sequence, "endpoints": endpoints, "published_ns": found.published_ns}


def first(shm_dir: Path) -> dict[str, Any]:
    endpoints = snapshot(shm_dir).get("endpoints") or [{}]
    found: dict[str, Any] = endpoints[0]
    return found


def test_it_reads_publishes_and_stops_cleanly(run: Processes, server: ModelServer, tmp_path: Path) -> None:
    agent = start(run, tmp_path, "--endpoint", server.address)
    eventually(lambda: first(tmp_path).get("models") == ["m"])
    found = first(tmp_path)
    assert (found["address"], found["running"], found["waiting"]) == (server.address, 3, 1)
    assert found["kv_cache_usage"] == 0.25
    assert (found["models"], found["flags"], found["engine"]) == (["m"], [], "vllm")
    assert time.monotonic_ns() - found["observed_ns"] < 5_000_000_000
    log = agent.stop()
    assert log.splitlines().count("ready") == 1
    # The file stays, for pickers; the temporary ones and the lock holder are gone.
    assert {path.name for path in tmp_path.iterdir()} <= {"node.snap", "node.snap.lock"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_a_server_hangs(run: Processes, tmp_path: Path, number: signal.Signals) -> None:
    async def silent() -> None:
        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.set()
            try:
                await reader.read()
            finally:
                writer.close()

        asked = asyncio.Event()
        listener = await asyncio.start_server(hold, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        agent = start(run, tmp_path, "--endpoint", f"127.0.0.1:{port}", wait=False)
        await asked.wait()
        await asyncio.to_thread(agent.wait_ready)
        agent.signal(number)
        assert await asyncio.to_thread(agent.wait) == 0
        assert "Traceback" not in agent.log
        listener.close()

    asyncio.run(silent())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--endpoint", "10.0.0.1"], "no port"),
        (["--endpoints-file", "/no/such/file"], "/no/such/file"),
        (["--endpoint", "no-such-host.invalid:1"], "no-such-host.invalid"),
        (["--metrics-address", "203.0.113.1:9"], "--metrics-address"),
    ],
)
def test_a_wrong_configuration_ends_with_2_and_one_sentence(tmp_path: Path, words: list[str], says: str) -> None:
    command = zerohop_command("agent", "--shm-dir", tmp_path / "shm", "--gpu", "off", *words)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("zerohop agent: error: ")
    assert says in last
    assert "Traceback" not in done.stderr


def test_a_path_that_another_agent_writes_is_refused(run: Processes, tmp_path: Path) -> None:
    holder = start(run, tmp_path)
    command = zerohop_command("agent", "--shm-dir", tmp_path, "--gpu", "off", "--metrics-address", "off")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 2
    assert f"pid {holder.pid}" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic_ns() - snapshot(tmp_path)["published_ns"] < 5_000_000_000


def test_the_endpoints_file_is_followed_and_a_bad_edit_changes_nothing(
    run: Processes, server: ModelServer, tmp_path: Path
) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text(f"endpoints:\n- address: {server.address}\n  name: a\n")
    shm = tmp_path / "shm"
    agent = start(run, shm, "--endpoints-file", file)
    eventually(lambda: first(shm).get("running") == 3)
    file.write_text(f"endpoints:\n- address: {server.address}\n  name: a\n  drian: true\n")
    line = agent.wait_for("the last good one stays")
    assert "endpoints.yaml:4" in line
    assert first(shm)["flags"] == []
    file.write_text(f"endpoints:\n- address: {server.address}\n  name: a\n  drain: true\n")
    eventually(lambda: first(shm).get("flags") == ["drain"])
    assert first(shm)["reasons"][0] == DrainReason.CONFIG
    file.write_text("endpoints: []\n")
    eventually(lambda: snapshot(shm).get("endpoints") == [])
    agent.stop()


def test_killed_and_started_again_it_goes_on_where_it_was(run: Processes, server: ModelServer, tmp_path: Path) -> None:
    agent = start(run, tmp_path, "--endpoint", "127.0.0.1:1", "--endpoint", server.address)
    eventually(lambda: any(row.get("running") == 3 for row in snapshot(tmp_path)["endpoints"]))
    before = {row["address"]: (row["row"], row["generation"]) for row in snapshot(tmp_path)["endpoints"]}
    agent.kill()
    sequence = snapshot(tmp_path)["sequence"]
    server.running = 5
    # The order of the flags is another, and one endpoint is gone.
    start(run, tmp_path, "--endpoint", server.address, "--endpoint", "127.0.0.1:2")
    eventually(lambda: any(row.get("running") == 5 for row in snapshot(tmp_path)["endpoints"]))
    found = snapshot(tmp_path)
    assert found["sequence"] > sequence
    rows = {row["address"]: (row["row"], row["generation"]) for row in found["endpoints"]}
    assert rows[server.address] == before[server.address]
    assert "127.0.0.1:1" not in rows


def test_a_server_that_dies_is_unhealthy_at_once_and_fine_when_it_is_back(run: Processes, tmp_path: Path) -> None:
    where = f"127.0.0.1:{free_port()}"
    server = run.zerohop("mock-server", "--listen", where)
    start(run, tmp_path, "--endpoint", where)
    eventually(lambda: first(tmp_path).get("flags") == [])
    server.kill()
    eventually(lambda: first(tmp_path)["flags"] == ["unhealthy"], timeout=2)
    assert first(tmp_path)["reasons"][1] == UnhealthyReason.REFUSED
    run.zerohop("mock-server", "--listen", where)
    eventually(lambda: first(tmp_path)["flags"] == [], timeout=4)


class Engine:
    """An engine that writes its own cell after each step of 4 ms, as the plugin in vLLM does."""

    def __init__(self, shm_dir: Path, address: str) -> None:
        self._cell = EngineCellWriter(shm_dir, "engine-0")
        self._cell.set_text({"endpoints": [address]})
        for name, value in (("running", 7), ("waiting", 2), ("kv_cache_usage", 0.5), ("engine_index", 0)):
            self._cell.set(name, value)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._step, daemon=True)
        self._thread.start()

    def _step(self) -> None:
        steps = 0
        while not self._stop.wait(0.004):
            steps += 1
            self._cell.set("steps", steps)
            self._cell.publish()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def test_an_engines_own_cell_is_followed_and_left_when_it_is_quiet(
    run: Processes, server: ModelServer, tmp_path: Path
) -> None:
    start(run, tmp_path, "--endpoint", server.address, "--scrape-interval", "200ms")
    eventually(lambda: first(tmp_path).get("running") == 3)
    engine = Engine(tmp_path, server.address)
    eventually(lambda: first(tmp_path)["flags"] == ["plugin"])
    reader = SnapshotReader(tmp_path)
    ages: list[int] = []

    def look() -> bool:
        snapshot = reader.read()
        assert snapshot is not None
        row = next(row for row, flags in enumerate(snapshot.column("flags")) if flags & Flag.USED)
        # Right after a scrape its values are the newer ones for a moment.
        assert snapshot.column("running")[row] in (7, 3)
        ages.append(time.monotonic_ns() - snapshot.column("observed_ns")[row])
        return True

    scrapes = server.scrapes
    hold(look, 1.5)
    # The page is read once a second only while the engine tells by itself.
    assert server.scrapes - scrapes <= 3
    reader.close()
    # A step, a publish interval and the look itself; the bound is wide for a loaded machine.
    assert sorted(ages)[len(ages) // 2] < 40_000_000
    engine.stop()
    eventually(lambda: first(tmp_path)["flags"] == [], timeout=3)
    assert first(tmp_path)["running"] == 3


def test_help_names_every_flag_of_the_interface() -> None:
    done = subprocess.run(zerohop_command("agent", "--help"), capture_output=True, text=True, check=True, timeout=20)
    for flag in (
        "--config", "--shm-dir", "--endpoint ", "--endpoints-file", "--scrape-interval", "--publish-interval",
        "--metrics-address", "--gpu {auto,off}", "--node-name", "--log-format", "--endpoint-capacity", "--stuck-after",
    ):  # fmt: skip
        assert flag in done.stdout, flag
    assert "SUPPRESS" not in done.stdout
    assert sys.executable

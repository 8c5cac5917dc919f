"""A real vLLM (on the CPU, a tiny model, two adapters) seen through agent and snapshot: by scrape and by plugin.

`ZEROHOP_REAL_VLLM` names a folder with `venv/` (vLLM, and `pip install --no-deps zerohop`), `tiny/`, `lora_alpha/` and
`lora_beta/`. Takes about three minutes and 6 GB.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import Process, Processes, free_ports, processes, zerohop_command
from support.waiting import eventually, hold
from zerohop_agent.modelserver.page import PageReader
from zerohop_agent.signals import Signals
from zerohop_console.snapshot_view import view
from zerohop_snapshot import SnapshotReader

pytestmark = [pytest.mark.vllm, pytest.mark.e2e, pytest.mark.timeout(900)]

#: vLLM takes 30 s to start where it is alone
START_TIMEOUT_S = 300.0


def serve(run: Processes, port: int, shm_dir: Path | None) -> Process:
    folder = Path(os.environ["ZEROHOP_REAL_VLLM"])
    environment = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if shm_dir is not None:
        environment["ZEROHOP_SHM_DIR"] = str(shm_dir)
    options = (
        "--load-format dummy --served-model-name tiny --host 127.0.0.1 --max-model-len 2048 --enforce-eager "
        "--dtype float32 --gpu-memory-utilization 0.1 --enable-lora --max-loras 2 --max-lora-rank 8 "
        "--lora-modules alpha=./lora_alpha beta=./lora_beta"
    )
    vllm = folder / "venv/bin/vllm"
    return run.start(vllm, "serve", "./tiny", "--port", str(port), *options.split(), env=environment, cwd=folder)


def wait_healthy(process: Process, port: int) -> None:
    def healthy() -> bool:
        assert process.returncode is None, process.log[-4000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    eventually(healthy, START_TIMEOUT_S, f"health of {port}\n{process.log[-2000:]}")


class Box:
    """Two servers - one with the plugin, one without - an agent, and what the pickers see."""

    def __init__(self, run: Processes, shm_dir: Path) -> None:
        self.run, self.shm_dir = run, shm_dir
        self.with_plugin, self.without = free_ports(2)
        self.servers = {
            self.with_plugin: serve(run, self.with_plugin, shm_dir),
            self.without: serve(run, self.without, None),
        }
        for port, server in self.servers.items():
            wait_healthy(server, port)
        endpoints = [part for port in self.servers for part in ("--endpoint", f"127.0.0.1:{port}")]
        options = ("--metrics-address", "127.0.0.1:0", "--gpu", "off")
        self.reader = SnapshotReader(shm_dir)
        self.agent = run.zerohop("agent", "--shm-dir", shm_dir, *endpoints, *options)

    def shown(self, port: int) -> dict[str, Any]:
        """What `zerohop snapshot --json` prints of one endpoint."""
        command = zerohop_command("snapshot", "--shm-dir", self.shm_dir, "--json")
        printed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return self._row(printed["endpoints"], port)

    def snapshot(self, port: int) -> dict[str, Any]:
        """The same, without a process of its own: two cores are busy enough."""
        snapshot = self.reader.read()
        assert snapshot is not None
        return self._row(view(snapshot, [0] * len(snapshot.column("flags")), time.monotonic_ns())["endpoints"], port)

    def _row(self, rows: list[dict[str, Any]], port: int) -> dict[str, Any]:
        return next(row for row in rows if row["address"] == f"127.0.0.1:{port}")

    def page(self, port: int) -> Signals:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return PageReader().read(answer.read())


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    if not os.environ.get("ZEROHOP_REAL_VLLM"):
        pytest.skip("ZEROHOP_REAL_VLLM names no folder")
    with processes() as run:
        yield Box(run, tmp_path_factory.mktemp("shm"))


def ask(port: int, model: str, max_tokens: int) -> None:
    body = json.dumps({"model": model, "prompt": "one two three " * 5, "max_tokens": max_tokens, "ignore_eos": True})
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body.encode(), {"Content-Type": "application/json"}
    )
    with contextlib.suppress(OSError, http.client.HTTPException):  # a killed server
        urllib.request.urlopen(request, timeout=120).read()


def load(port: int, count: int, max_tokens: int) -> list[threading.Thread]:
    models = ["alpha", "beta", "tiny"]
    threads = [threading.Thread(target=ask, args=(port, models[n % 3], max_tokens), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    return threads


def agree(box: Box, port: int) -> bool:
    row, page = box.shown(port), box.page(port)
    assert (row["waiting"], row["running"]) == (page.waiting, page.running)
    assert row["kv_cache_usage"] == pytest.approx(page.kv_cache_usage, rel=1e-5)
    assert set(row["adapters"]["running"] or ()) == set(page.lora_running or ())
    assert row["adapters"]["max"] in (None, 2)
    return True


@pytest.mark.parametrize("which", ["with_plugin", "without"])
def test_at_rest_under_load_and_after(box: Box, which: str) -> None:
    port = getattr(box, which)
    eventually(lambda: box.snapshot(port)["waiting"] is not None)
    eventually(lambda: agree(box, port))
    assert box.snapshot(port)["models"] == ["tiny", "alpha", "beta"]
    threads = load(port, 9, 600)
    eventually(lambda: box.snapshot(port)["running"] == 9, 20)
    assert box.snapshot(port)["kv_cache_usage"] > 0
    # Adapters follow a little later than the gauges: they are written ten times a second.
    eventually(lambda: set(box.snapshot(port)["adapters"]["running"]) == {"alpha", "beta"}, 5)
    ages: list[float] = []
    hold(lambda: ages.append(box.snapshot(port)["observed_age_ms"]) is None, 1.0)  # type: ignore[func-returns-value]
    assert statistics.median(ages) < (100 if which == "with_plugin" else 500)
    if which == "with_plugin":
        assert "plugin" in box.snapshot(port)["flags"]
    for thread in threads:
        thread.join(60)
    eventually(lambda: box.snapshot(port)["running"] == 0, 10)
    eventually(lambda: agree(box, port), 10)


@pytest.mark.parametrize("which", ["with_plugin", "without"])
def test_a_killed_server_is_followed_without_a_wrong_value(box: Box, which: str) -> None:
    port = getattr(box, which)
    load(port, 6, 1500)
    eventually(lambda: box.snapshot(port)["running"] == 6, 20)
    os.killpg(box.servers[port].pid, signal.SIGKILL)
    box.servers[port].wait(20)
    eventually(lambda: "unhealthy" in box.snapshot(port)["flags"], 10)
    box.servers[port] = serve(box.run, port, box.shm_dir if which == "with_plugin" else None)
    seen: list[tuple[object, object]] = []

    def look() -> bool:
        row = box.snapshot(port)
        if not {"unhealthy", "stale"} & set(row["flags"]):
            seen.append((row["waiting"], row["running"]))
        return len(seen) >= 5

    eventually(look, START_TIMEOUT_S)
    # Nothing of the old life: the new engine has had no request.
    assert set(seen) == {(0, 0)}
    wait_healthy(box.servers[port], port)
    agree(box, port)
    threads = load(port, 3, 100)
    eventually(lambda: box.snapshot(port)["running"] == 3, 20)
    for thread in threads:
        thread.join(60)


@pytest.mark.parametrize("which", ["with_plugin", "without"])
def test_it_conforms(box: Box, which: str, tmp_path: Path) -> None:
    port = getattr(box, which)
    report = tmp_path / "report.json"
    command = zerohop_command("conformance", "model-server", f"127.0.0.1:{port}", "--load", "--json", report)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    items = {item["name"]: item for item in json.loads(report.read_text())["items"]}
    # How quick a page is says more about two servers, an agent and a test on two cores.
    quick = {"page/quick", "load/readable"}
    assert {name for name, item in items.items() if item["result"] == "fail"} <= quick
    assert items["lora/names"]["result"] == "pass"
    assert items["load/settles-after-abort"]["result"] == "pass"

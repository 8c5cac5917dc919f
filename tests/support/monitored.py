"""A node under load with a real Prometheus that scrapes it: boards, model servers, agent, picker, Envoy."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.gateway import start_envoy
from support.nvml import Boards, uuid_of
from support.processes import Processes, free_port, zerohop_command
from support.waiting import eventually

MONITORING = Path(__file__).resolve().parents[2] / "manifests" / "monitoring"
_BOARDS = 4
_SERVERS = 3


def prometheus_program(name: str) -> str:
    """`prometheus` or `promtool`; skips where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on this machine (Debian: apt-get install prometheus)")
    return found


class Monitored:
    """Everything running; `load(requests)` sends chat requests through Envoy and returns how many were answered."""

    def __init__(self, folder: Path, run: Processes, *, scrape_interval: str = "500ms") -> None:
        program = prometheus_program("prometheus")
        self.boards = Boards(folder, count=_BOARDS)
        self.boards.set("*", util=35, mem_util=20, mem_used_mib=62_000, power_mw=410_000, temp=58, reasons=0)
        self.servers = [f"127.0.0.1:{free_port()}" for _ in range(_SERVERS)]
        for address in self.servers:
            run.start(*zerohop_command("mock-server", "--listen", address))
        config = {
            "gpu": {"interval": "200ms", "slow_interval": "500ms", "condition": {"slowdown_after": "200ms"}},
            "pools": [{"name": "llm/chat"}],
            "endpoints": [
                {"address": address, "name": f"vllm-{number}", "gpus": [uuid_of(number)]}
                for number, address in enumerate(self.servers)
            ],
        }
        (folder / "agent.yaml").write_text(json.dumps(config))
        self.agent_metrics, self.picker_metrics = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        socket = folder / "picker.sock"
        shm = folder / "shm"
        run.start(
            *zerohop_command("agent", "--config", folder / "agent.yaml", "--shm-dir", shm),
            *("--metrics-address", self.agent_metrics), env=self.boards.environment(),
        ).wait_ready()  # fmt: skip
        run.start(
            *zerohop_command("picker", "--shm-dir", shm, "--listen", f"unix:{socket}", "--health-checking"),
            *("--metrics-address", self.picker_metrics),
        ).wait_ready()  # fmt: skip
        envoy = start_envoy(
            run, folder, "body", picker=[str(socket)], servers=[(host, int(port)) for host, port in self._addresses()]
        )
        self.gateway = f"{envoy.host}:{envoy.port}"
        eventually(lambda: envoy.healthy("picker") == 1, what="Envoy sees the picker")
        self.prometheus = f"127.0.0.1:{free_port()}"
        self._start_prometheus(program, folder, run, scrape_interval)

    def _addresses(self) -> Iterator[tuple[str, str]]:
        for address in self.servers:
            host, _, port = address.rpartition(":")
            yield host, port

    def _start_prometheus(self, program: str, folder: Path, run: Processes, interval: str) -> None:
        jobs = [("zerohop-agent", self.agent_metrics), ("zerohop-picker", self.picker_metrics)]
        config = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": [str(MONITORING / "rules.yaml")],
            "scrape_configs": [
                {
                    "job_name": job,
                    "honor_labels": True,
                    "static_configs": [{"targets": [target], "labels": {"node": "node-a"}}],
                }
                for job, target in jobs
            ],
        }
        (folder / "prometheus.json").write_text(json.dumps(config))  # JSON is YAML
        run.start(
            program, f"--config.file={folder / 'prometheus.json'}", f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address={self.prometheus}", "--log.level=warn",
        )  # fmt: skip
        up = 'count(up == 1 and on (job) up{job=~"zerohop-.*"})'
        eventually(lambda: [value for _, value in self.query(up)] == [2.0], 20, what="Prometheus scrapes both")

    def load(self, requests: int, *, concurrency: int = 4) -> int:
        """Send chat requests and return the number of good answers."""
        answered = [0] * concurrency

        def send(thread: int) -> None:
            for number in range(thread, requests, concurrency):
                body = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": f"hello {number}"}]}
                request = urllib.request.Request(
                    f"http://{self.gateway}/v1/chat/completions",
                    json.dumps(body).encode(),
                    {"content-type": "application/json"},
                )
                with urllib.request.urlopen(request, timeout=20) as reply:
                    reply.read()
                    answered[thread] += reply.status == 200

        threads = [threading.Thread(target=send, args=(number,)) for number in range(concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(answered)

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of every series now; empty while Prometheus does not serve yet."""
        try:
            result = self._get("query", query=expression)
        except urllib.error.URLError:
            return []
        return [(series["metric"], float(series["value"][1])) for series in result]

    def query_range(
        self, expression: str, seconds: float, step_s: float = 1.0
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Labels and points of every series of the last `seconds`. Raises: AssertionError with Prometheus' words."""
        now = time.time()
        result = self._get("query_range", query=expression, start=now - seconds, end=now, step=step_s)
        return [(series["metric"], [(float(at), float(value)) for at, value in series["values"]]) for series in result]

    def _get(self, kind: str, **parameters: Any) -> list[dict[str, Any]]:
        url = f"http://{self.prometheus}/api/v1/{kind}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            if error.code == 503:
                raise urllib.error.URLError("not ready") from None
            raise AssertionError(f"{parameters['query']}: {error.read().decode()}") from None
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found


def dashboard() -> dict[str, Any]:
    """The shipped Grafana dashboard."""
    loaded: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    return loaded


def panels() -> list[dict[str, Any]]:
    """Its panels, without the rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def as_promql(expression: str, *, interval: str = "3s") -> str:
    """A dashboard's expression with its variables filled in as "All"."""
    filled = expression.replace("$__rate_interval", interval).replace("$node", ".*")
    return re.sub(r"\$\{pool:regex\}", ".*", filled)

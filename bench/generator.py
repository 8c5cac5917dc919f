"""Closed-loop HTTP load: `wrk` where there is one, else a small client on uvloop in a process of its own."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import cast

import uvloop

BODY = json.dumps(
    {"model": "tiny", "max_tokens": 16, "messages": [{"role": "user", "content": "What is the age of a value? " * 68}]}
)
PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Load:
    """How one run went."""

    requests: int
    errors: int
    duration_s: float
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.duration_s


def name() -> str:
    """Which generator is used."""
    return "wrk" if shutil.which("wrk") else "bench/generator.py"


def run(port: int, connections: int, duration_s: float) -> Load:
    """Send the 2 kB chat over and over again on kept-alive connections."""
    if shutil.which("wrk"):
        return _wrk(port, connections, duration_s)
    command = [sys.executable, "-m", "bench.generator", str(port), str(connections), str(duration_s)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Load(**json.loads(out))


def _wrk(port: int, connections: int, duration_s: float) -> Load:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(
            f'wrk.method = "POST"\nwrk.body = [[{BODY}]]\nwrk.headers["content-type"] = "application/json"\n'
            "done = function(summary, latency)\n"
            "  local e = summary.errors\n"
            '  print(string.format("RESULT %d %d %d %f %f", summary.requests, e.connect + e.read + e.write + e.status'
            " + e.timeout, summary.duration, latency:percentile(50), latency:percentile(99)))\nend\n"
        )
        script.flush()
        url = f"http://127.0.0.1:{port}{PATH}"
        command = [
            "wrk",
            "-t1",
            "--timeout",
            "10s",
            f"-c{connections}",
            f"-d{max(1, round(duration_s))}s",
            "-s",
            script.name,
            url,
        ]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\S+) (\S+)", out)
    if found is None:
        raise RuntimeError(f"wrk said: {out}")
    requests, errors, duration_us, p50_us, p99_us = found.groups()
    return Load(int(requests), int(errors), int(duration_us) / 1e6, float(p50_us) / 1e3, float(p99_us) / 1e3)


class _Sender(asyncio.Protocol):
    def __init__(self, request: bytes, latencies: list[float], errors: list[int]) -> None:
        self._request, self._latencies, self._errors = request, latencies, errors
        self._left = -1
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._buffer += data
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end].lower()
            self._errors[0] += not head.startswith(b"http/1.1 200")
            self._left = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            data, self._buffer = self._buffer[end + 4 :], b""
        self._left -= len(data)
        if self._left <= 0:
            self._left = -1
            self._latencies.append(time.perf_counter() - self._sent_s)
            self._send()


async def _generate(port: int, connections: int, duration_s: float) -> Load:
    raw = BODY.encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    latencies: list[float] = []
    errors = [0]
    loop = asyncio.get_running_loop()
    senders = [
        (await loop.create_connection(lambda: _Sender(head.encode() + raw, latencies, errors), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    began_s = time.perf_counter()
    await asyncio.sleep(duration_s)
    took_s = time.perf_counter() - began_s
    for sender in senders:
        sender.transport.abort()
    latencies.sort()
    count = len(latencies)
    return Load(count, errors[0], took_s, latencies[count // 2] * 1e3, latencies[count * 99 // 100] * 1e3)


if __name__ == "__main__":
    done = uvloop.run(_generate(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
    print(json.dumps({field: getattr(done, field) for field in Load.__dataclass_fields__}))

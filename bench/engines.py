"""`python -m bench.engines`: reading metrics pages, fetching them, and the plugin's cost per engine step.

Pages are the captured ones of the shared data where they are there (`ZEROHOP_SHARED`), else one that is made up here.
Times are CPU time of this process; the ratio stands against `prometheus_client.parser` on the same page.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench import cells, table
from zerohop_agent.endpoints import EndpointSpec
from zerohop_agent.modelserver.page import PageReader
from zerohop_agent.modelserver.reader import ModelServerReader
from zerohop_agent.modelserver.settings import ModelServerSettings
from zerohop_process.address import Address

PAGES = ("vllm-0.32.0-cpu-lora-busy", "vllm-0.33.0-gen-dp4-lora0", "sglang-0.5.23-gen-dp2", "tgi-3-synthetic")


def best_us(action: Callable[[], object], count: int, repeat: int = 7) -> float:
    """CPU microseconds of one call, the best of `repeat` rounds of `count`."""
    best = float("inf")
    for _ in range(repeat):
        started = time.process_time()
        for _ in range(count):
            action()
        best = min(best, (time.process_time() - started) / count)
    return best * 1e6


def pages() -> dict[str, bytes]:
    root = Path(os.environ.get("ZEROHOP_SHARED") or Path(__file__).resolve().parents[2] / "shared") / "data" / "metrics"
    found = {name: (root / f"{name}.prom").read_bytes() for name in PAGES if (root / f"{name}.prom").is_file()}
    return found or {"made up": made_up(600)}


def made_up(lines: int) -> bytes:
    wanted = ["num_requests_waiting", "num_requests_running", "kv_cache_usage_perc", "generation_tokens_total"]
    body = [f'vllm:{name}{{engine="0",model_name="m"}} 0.5' for name in wanted]
    body += [f'vllm:e2e_seconds_bucket{{engine="0",le="{n}",model_name="some/model"}} {n}.0' for n in range(lines)]
    return ("process_start_time_seconds 1.7e9\n" + "\n".join(body) + "\n").encode()


def scan() -> None:
    rows = []
    for name, page in pages().items():
        reader = PageReader()
        reader.read(page)
        text = page.decode()
        parser_us = best_us(lambda text=text: list(text_string_to_metric_families(text)), 3)  # type: ignore[misc]
        # 66 pages hold two looks for new series, which every 32nd page has.
        scan_us = best_us(lambda page=page, reader=reader: [reader.read(page) for _ in range(66)], 5) / 66  # type: ignore[misc]
        first_us = best_us(lambda page=page: PageReader().read(page), 30)  # type: ignore[misc]
        rows.append(
            {
                "page": name,
                "kB": round(len(page) / 1000, 1),
                "scan us": round(scan_us, 1),
                "first scan us": round(first_us, 1),
                "prometheus_client us": round(parser_us),
                "ratio": f"{parser_us / scan_us:.0f}x",
            }
        )
    print(table.text(rows))


async def fetch(endpoints: int, interval_ms: int, seconds: float) -> dict[str, object]:
    """Read `endpoints` servers of this loop's neighbour process every `interval_ms`, nothing else."""
    page = next(iter(pages().values()))
    program = _SERVER.format(count=endpoints, size=len(page))
    with tempfile.NamedTemporaryFile() as file:
        file.write(page)
        file.flush()
        server = await asyncio.create_subprocess_exec(
            "python3", "-c", program, file.name, stdout=asyncio.subprocess.PIPE
        )
        assert server.stdout is not None
        ports = [int(port) for port in (await server.stdout.readline()).split()]
    readings = 0

    def count(*_args: object) -> None:
        nonlocal readings
        readings += 1

    settings = ModelServerSettings(scrape_interval_ns=interval_ms * 1_000_000)
    specs = [EndpointSpec(str(port), Address("127.0.0.1", port), str(port)) for port in ports]
    tasks = [asyncio.create_task(ModelServerReader(spec, settings, count, print).run()) for spec in specs]
    try:
        await asyncio.sleep(1.0)
        before, started, cpu = readings, time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        used, took, done = time.process_time() - cpu, time.monotonic() - started, readings - before
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        server.kill()
        await server.wait()
    return {
        "endpoints": endpoints,
        "interval ms": interval_ms,
        "page kB": round(len(page) / 1000, 1),
        "readings/s": round(done / took),
        "core %": round(100 * used / took, 1),
        "us per reading": round(used / done * 1e6),
    }


_SERVER = """
import asyncio, sys
page = open(sys.argv[1], "rb").read()
assert len(page) == {size}
class Answer(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        body = page if b"GET /metrics " in data else b'{{"data":[]}}'
        status = b"404 Not Found" if b"name%5B" in data else b"200 OK"
        self.transport.write(b"HTTP/1.1 " + status + b"\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
async def main():
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Answer, "127.0.0.1", 0) for _ in range({count})]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


def plugin() -> None:
    """Write the cell of a busy engine: 64 requests in the batch, two adapters."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ["ZEROHOP_SHM_DIR"] = folder
        logger = cells.engine(0)
        scheduler, iteration = cells.statistics()
        step_us = best_us(lambda: logger.record(scheduler, iteration, mm_cache_stats=None, engine_idx=0), 5000)
        logger.close()
    print(table.text([{"plugin": "vLLM, 64 requests, 2 adapters", "us per step": round(step_us, 1)}]))


def main() -> None:
    import uvloop

    scan()
    print()
    print(table.text([uvloop.run(fetch(8, 50, 6.0)), uvloop.run(fetch(100, 250, 6.0))]))
    print()
    plugin()


if __name__ == "__main__":
    main()

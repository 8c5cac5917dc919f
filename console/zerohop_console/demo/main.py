"""`zerohop demo`: real requests through a real Envoy to the server that the picker chose from shared memory."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from zerohop_console.demo import summary
from zerohop_console.demo.box import Box, Server
from zerohop_console.demo.children import ChildFailed
from zerohop_console.demo.live import Screen
from zerohop_console.demo.load import Load, Ramp, probe, small
from zerohop_console.demo.real import serve_script, start_real_servers
from zerohop_console.demo.watch import NodeWatch
from zerohop_process import lifecycle, log
from zerohop_process.errors import ConfigError

# Steps of about 15 ms, as of a mid-sized model; and three times that.
_STEP_FACTOR = 2.0
_SLOW_FACTOR = 3 * _STEP_FACTOR
_FRAME_S = 0.2
#: requests/s at the start and at the end of the load
_MOCK_RATES = (25.0, 50.0)
_REAL_RATES = (2.0, 8.0)
_PROBE_PAIRS = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `zerohop demo`."""
    parser.add_argument("--requests", type=int, default=None, metavar="N", help="chat requests to send (default: 500)")
    parser.add_argument("--json", action="store_true", help="print only the summary, as JSON")
    parser.add_argument(
        "--real-vllm",
        type=Path,
        metavar="DIR",
        help="use two real vLLM servers, installed in DIR (default: 150 requests)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 when what it promises held, 1 when not, 130 after Ctrl-C."""
    if args.requests is not None and not 1 <= args.requests <= 1_000_000:
        raise ConfigError("--requests: must lie between 1 and 1000000")
    if args.real_vllm is not None:
        serve_script(args.real_vllm)
    log.configure("text", "demo", level="warning")
    return lifecycle.run(_main(args))


async def _main(args: argparse.Namespace) -> int:
    stop = lifecycle.StopSignal()
    demo = asyncio.create_task(_demo(args))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({demo, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not demo.done():
        demo.cancel()
        await asyncio.wait({demo})
    stopped.cancel()
    if demo.cancelled() or stop.is_set():
        return 130
    return demo.result()


async def _demo(args: argparse.Namespace) -> int:
    started_s = time.monotonic()
    with Screen(quiet=args.json) as screen:
        try:
            async with Box() as box:
                result = await _play(box, args, screen)
                screen.phase("stopping everything")
        except ChildFailed as error:
            print(f"zerohop demo: {error}", file=sys.stderr)
            return 1
    found = {**summary.summarise(result), "wall_s": round(time.monotonic() - started_s, 1)}
    if args.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        screen.print(summary.table(found))
    for promise in found["broken_promises"]:
        print(f"zerohop demo: {promise}", file=sys.stderr)
    return 1 if found["broken_promises"] else 0


async def _play(box: Box, args: argparse.Namespace, screen: Screen) -> summary.Result:
    real = args.real_vllm is not None
    count = args.requests or (150 if real else 500)
    ramp = Ramp(count, *(_REAL_RATES if real else _MOCK_RATES))
    if real:
        screen.phase("starting two real vLLM servers (this takes a minute)")
        await start_real_servers(box, args.real_vllm, ("vllm-0", "vllm-1"))
        box.servers[-1].role = "drained"
    else:
        screen.phase("starting four mock model servers")
        await box.start_mock_servers(("server-0", "server-1", "server-2", "server-3"), "--max-num-seqs", "32",
                                     "--slow-factor", str(_STEP_FACTOR))  # fmt: skip
        box.servers[1].role, box.servers[3].role = "slow", "drained"
    screen.phase("starting agent, picker and Envoy")
    await box.start_path(agent_flags=("--scrape-interval", "20ms"))
    watch = NodeWatch(box.shm_dir)
    await _until(lambda: len(usable(watch)) == len(box.servers), 20.0, "the snapshot shows every server")
    screen.phase("measuring what a pick costs while nothing else runs")
    picked_s, plain_s = await probe(box.picked_port, box.round_robin_port, small("tiny", real=real), _PROBE_PAIRS)
    for server in box.servers:
        if server.role == "slow":
            await box.admin(server, slow_factor=_SLOW_FACTOR)
    return await _with_load(box, watch, ramp, screen, picked_s, plain_s)


async def _with_load(
    box: Box, watch: NodeWatch, ramp: Ramp, screen: Screen, picked_s: list[float], plain_s: list[float]
) -> summary.Result:
    names = {str(server.address): server.name for server in box.servers}
    load = Load(box.picked_port, names, ramp, "tiny", ages_ms=watch.ages_ms)
    drained_ns: dict[str, int] = {}
    watch.start_counting()
    start_s = time.monotonic()
    screen.phase(f"sending {ramp.count} chats at a rising rate; {_plot(box.servers)}")
    loading = asyncio.create_task(load.run())
    side = [
        asyncio.create_task(_drain_half_way(box, watch, load, drained_ns, screen)),
        asyncio.create_task(_show(box, watch, load, screen)),
        asyncio.create_task(box.children.first_to_end()),
    ]
    try:
        # Whatever of the side fails ends the demo; the load ends it well.
        await asyncio.wait({loading, side[0]}, return_when=asyncio.FIRST_EXCEPTION)
        await _first(loading, side[2])
        await side[0]
    finally:
        for task in (loading, *side):
            task.cancel()
        await asyncio.gather(loading, *side, return_exceptions=True)
    picks = {name: seen.picks for name, seen in watch.endpoints().items()}
    return summary.Result(load.finished, box.servers, picks, drained_ns, picked_s, plain_s, time.monotonic() - start_s)


async def _first(wanted: asyncio.Task[Any], failing: asyncio.Task[Any]) -> None:
    """Wait for `wanted`; what `failing` raises meanwhile is raised here."""
    await asyncio.wait({wanted, failing}, return_when=asyncio.FIRST_COMPLETED)
    if failing.done():
        failing.result()
    await wanted


async def _drain_half_way(box: Box, watch: NodeWatch, load: Load, drained_ns: dict[str, int], screen: Screen) -> None:
    names = [server.name for server in box.servers if server.role == "drained"]
    await load.half_done.wait()
    box.write_endpoints(drained=names)
    await _until(lambda: all(watch.endpoints()[name].draining for name in names), 10.0, "the snapshot shows the drain")
    for name in names:
        drained_ns[name] = time.monotonic_ns()
    screen.phase(f"{', '.join(names)} is drained; {_plot(box.servers)}")


async def _show(box: Box, watch: NodeWatch, load: Load, screen: Screen) -> None:
    before, moment_s = 0, time.monotonic()
    while True:
        await asyncio.sleep(_FRAME_S)
        now_s = time.monotonic()
        rate, before, moment_s = (load.sent - before) / (now_s - moment_s), load.sent, now_s
        screen.show(box.servers, watch.endpoints(), len(load.finished), load.ramp.count, rate)


async def _until(condition: Any, timeout_s: float, what: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise ChildFailed(f"after {timeout_s:g} s it is still not so that {what}")
        await asyncio.sleep(0.02)


def usable(watch: NodeWatch) -> list[str]:
    """Return the names of the endpoints that a picker would use now."""
    return [name for name, seen in watch.endpoints().items() if seen.usable]


def _plot(servers: list[Server]) -> str:
    slow = [server.name for server in servers if server.role == "slow"]
    return f"{', '.join(slow)} is three times slower" if slow else "the last one will be drained"

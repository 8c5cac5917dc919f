"""`zerohop mock-server`: one mock model server as its own process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib

from zerohop_console.mockserver.api import Api, serve
from zerohop_console.mockserver.engine import Engine, EngineSettings
from zerohop_console.mockserver.page import Measurements, Page
from zerohop_console.mockserver.timing import StepTime
from zerohop_process import address, lifecycle, log
from zerohop_process.errors import ConfigError, reason


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `zerohop mock-server`; those of the engine are named as vLLM's."""
    parser.add_argument(
        "--listen", type=address.address, default="127.0.0.1:8000", metavar="HOST:PORT", help="port 0: any"
    )
    parser.add_argument("--name", default="", help="sent back in the x-mock-server header (default: the address)")
    parser.add_argument("--model", default="tiny", help="served model name")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME", help="LoRA adapter; may be repeated")
    parser.add_argument("--max-loras", type=_positive, default=2, help="adapters in one batch")
    parser.add_argument("--max-num-seqs", type=_positive, default=64, help="requests in one batch")
    parser.add_argument("--max-num-batched-tokens", type=_positive, default=8192, help="tokens in one step")
    parser.add_argument("--max-model-len", type=_positive, default=32_768, help="longest context, in tokens")
    parser.add_argument("--num-gpu-blocks", type=_positive, default=4_000, help="blocks of the KV cache")
    parser.add_argument("--block-size", type=_positive, default=16, help="tokens per block")
    parser.add_argument("--slow-factor", type=float, default=1.0, help="2 doubles the duration of each step")
    parser.add_argument(
        "--metrics-padding-bytes", type=int, default=0, help="make the metrics page about this much larger"
    )
    parser.add_argument("--log-format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    log.configure(args.log_format, "mock-server")
    if not args.slow_factor > 0:
        raise ConfigError("--slow-factor: must be positive")
    return lifecycle.run(_serve(args))


async def _serve(args: argparse.Namespace) -> int:
    stop = lifecycle.StopSignal()
    settings = EngineSettings(
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=args.max_model_len,
        block_size=args.block_size,
        num_gpu_blocks=args.num_gpu_blocks,
        max_loras=args.max_loras,
        step_time=StepTime(),
    )
    measurements = Measurements()
    engine = Engine(settings, measurements)
    engine.slow_factor = args.slow_factor
    page = Page(args.model, settings, measurements, lora=bool(args.adapter), padding_bytes=args.metrics_padding_bytes)
    api = Api(
        name=args.name or str(args.listen),
        model=args.model,
        adapters=tuple(args.adapter),
        engine=engine,
        page=page,
        measurements=measurements,
    )
    try:
        server, connections = await serve(api, args.listen.host, args.listen.port)
    except OSError as error:
        raise ConfigError(f"--listen: {reason(error, str(args.listen))}") from None
    stepping = asyncio.create_task(engine.run())
    lifecycle.ready("mock-server", address="{}:{}".format(*server.sockets[0].getsockname()[:2]), model=args.model)
    await stop.wait()
    server.close()
    for connection in list(connections):
        connection.close_when_idle()
    # Requests in flight are finished, as a model server does on SIGTERM; a second signal ends it at once.
    await engine.drained()
    stepping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await stepping
    for connection in list(connections):
        connection.abort()
    return 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value

"""What the protocol core costs alone: no socket, no scheduler, messages in and replies out.

Times are the best of many short runs, which a busy machine disturbs least; the yardstick (a dict of 20 texts) says how
fast the machine was. Run: python -m bench.protocol
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from bench import table
from support import extproc
from support.schedulers import CountingTicket, FixedScheduler
from zerohop_picker.protocol import ExtProcStream, ProtocolCore, ProtocolSettings
from zerohop_picker.request.body import read_json, splice_model
from zerohop_picker.request.kinds import RequestKind
from zerohop_picker.request.model import LLMRequest
from zerohop_picker.request.prompt import canonical
from zerohop_picker.scheduling_contract import Decision

HEADERS = {
    ":scheme": "http",
    "user-agent": "openai/1.0",
    "accept": "*/*",
    "content-length": "2048",
    "x-forwarded-proto": "http",
    "authorization": "Bearer abcdefgh",
    "x-envoy-expected-rq-timeout-ms": "15000",
}
EVENT = b'data: {"id":"chatcmpl-1","choices":[{"delta":{"content":"hello"}}]}\n\n'


class _Same(FixedScheduler):
    """One decision for all, made beforehand."""

    def __init__(self) -> None:
        super().__init__()
        self._decision = Decision(("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"), CountingTicket(self))

    def schedule(self, request: LLMRequest, now_ns: int) -> Decision:
        del request, now_ns
        return self._decision


def _body(size: int) -> bytes:
    return b'{"model":"llama-3","messages":[{"role":"user","content":"' + b"x" * (size - 86) + b'"}],"stream":true}'


def _best_us(run: Callable[[], object], calls: int, repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter_ns()
        for _ in range(calls):
            run()
        best = min(best, time.perf_counter_ns() - began)
    return best / calls / 1000


def _exchange(core: ProtocolCore, messages: list[bytes]) -> Callable[[], None]:
    def run() -> None:
        stream = ExtProcStream(core)
        for message in messages:
            stream.receive(message, 1)
        stream.close()

    return run


def _uploads(size: int, chunk: int) -> list[bytes]:
    body = _body(size)
    parts = [extproc.request_body(body[at : at + chunk], end=False) for at in range(0, size, chunk)]
    return [extproc.request_headers(headers=HEADERS), *parts, extproc.request_body(b"")]


def _echo(core: ProtocolCore) -> Callable[[], list[bytes]]:
    stream = ExtProcStream(core)
    for message in (extproc.request_headers(response_mode=extproc.FULL_DUPLEX), extproc.request_body()):
        stream.receive(message, 1)
    stream.receive(extproc.response_headers(), 1)
    message = extproc.response_body(EVENT)
    return lambda: stream.receive(message, 1)


def main() -> None:
    skip, observe = ProtocolCore(_Same()), ProtocolCore(_Same(), ProtocolSettings(response="observe"))
    head = extproc.request_headers(headers=HEADERS)
    long = _body(220_000)
    cases: list[tuple[str, Callable[[], object], int, int, str]] = [
        ("yardstick", lambda: {number: str(number) for number in range(20)}, 50, 500, ""),
        ("headers only", _exchange(skip, [extproc.request_headers(headers=HEADERS, mode=0)]), 10, 1000, ""),
        ("headers + 2 kB body", _exchange(skip, [head, extproc.request_body(_body(2000))]), 10, 1000, "20"),
        ("headers + 2 kB body + empty end", _exchange(skip, _uploads(2000, 4000)), 10, 1000, ""),
        ("headers + 220 kB body in 32 kB chunks", _exchange(skip, _uploads(220_000, 32_768)), 2, 300, ""),
        ("headers + 8 MB body in 64 kB chunks", _exchange(skip, _uploads(8_000_000, 65_536)), 1, 20, ""),
        ("one echoed response chunk", _echo(observe), 20, 1000, "15 with the front"),
        ("model of 2 kB / JSON", lambda: read_json(long[:0] + _body(2000), model_required=True), 50, 300, ""),
        ("model of 220 kB / JSON", lambda: read_json(long, model_required=True), 2, 300, ""),
        ("rename in 220 kB", lambda: splice_model(long, "application/json", "other"), 2, 300, ""),
        ("canonical prompt of 220 kB", lambda: canonical(RequestKind.CHAT, long), 2, 300, ""),
    ]
    rows = [
        {"what": what, "us": round(_best_us(run, calls, repeats), 2), "budget": budget}
        for what, run, calls, repeats, budget in cases
    ]
    print(table.text(rows))
    tracemalloc.start()
    streams = [_echo(observe) for _ in range(1000)]
    print(f"\nan open stream whose response is observed: {tracemalloc.get_traced_memory()[0] / len(streams):.0f} bytes")


if __name__ == "__main__":
    main()

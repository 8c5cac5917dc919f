"""What open streams and their bodies may take of memory."""

from __future__ import annotations

import tracemalloc

import pytest

from support import extproc as x
from support.extproc import CHAT, Exchange, request_body, request_headers
from support.schedulers import FixedScheduler
from unit.picker.protocol.exchanges import PICK, exchange
from zerohop_picker.protocol import ProtocolCore, ProtocolSettings


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("mode", [x.FULL_DUPLEX, x.BUFFERED, x.BUFFERED_PARTIAL])
def test_agentgateway_2359_a_body_past_the_cap_is_413_and_not_held(mode: int, announced: bool) -> None:
    limit = 3 << 20
    it = exchange(max_request_bytes=limit)
    it.feed(request_headers(mode=mode, headers={"content-length": str(limit + 1)} if announced else {}))
    if not announced:
        chunk = b"x" * (1 << 20)
        it.feed(*(request_body(chunk, end=False) for _ in range(3))) if mode == x.FULL_DUPLEX else None
        assert it.refusal is None
        it.feed(request_body(b"x" * (1 if mode == x.FULL_DUPLEX else limit + 1)))
    assert it.refusal.status.code == 413
    assert it.stream.held_bytes == it.stream._core.counters.held_bytes == 0
    assert it.feed(request_body(b"more")) == []


def test_many_slow_uploads_are_held_up_to_a_cap_in_all() -> None:
    core = ProtocolCore(FixedScheduler(), ProtocolSettings(max_held_bytes=2500))
    open_ones = [Exchange(core) for _ in range(3)]
    for it in open_ones:
        it.feed(request_headers(), request_body(b"x" * 1000, end=False))
    assert [it.refusal.status.code if it.refusal else None for it in open_ones] == [None, None, 503]
    assert core.counters.held_bytes == 2000
    open_ones[0].stream.close()
    late = Exchange(core)
    late.feed(request_headers(), request_body(CHAT))
    assert late.destination == PICK


def test_a_body_that_does_not_matter_is_not_held() -> None:
    it = exchange()
    it.feed(request_headers("/v1/files"))
    it.feed(request_body(b"x" * 1000, end=False))
    assert (it.kinds, it.stream.held_bytes) == (["request_headers", "request_body"], 0)


def test_an_upload_of_single_bytes_costs_what_it_has() -> None:
    it = exchange()
    it.feed(request_headers("/v1/completions"))
    message = request_body(b"x", end=False)
    chunks = [bytes(bytearray(message)) for _ in range(20_000)]
    tracemalloc.start()
    try:
        for chunk in chunks:
            it.stream.receive(chunk, 1)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert it.stream.held_bytes == 20_000
    assert held < 60_000
    it.feed(request_body(CHAT))
    assert it.refusal.status.code == 400
    assert it.stream.held_bytes == it.stream._core.counters.held_bytes == 0


def test_a_thousand_open_streams_are_small() -> None:
    core = ProtocolCore(FixedScheduler(), ProtocolSettings(response="observe"))
    messages = [request_headers(response_mode=x.FULL_DUPLEX), request_body(CHAT * 1), x.response_headers()]
    streams = [Exchange(core) for _ in range(10)]
    for it in streams:
        it.feed(*messages)
    tracemalloc.start()
    try:
        open_ones = []
        for _ in range(1000):
            it = Exchange(core)
            for message in messages:
                it.stream.receive(message, 1)
            open_ones.append(it.stream)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / 1000 < 3000


def test_an_8_mb_body_is_copied_no_more_than_twice() -> None:
    size = 8 << 20
    body = b'{"model":"m","prompt":"' + b"x" * size + b'"}'
    chunks = [request_body(body[at : at + 65_536], end=False) for at in range(0, len(body), 65_536)]
    messages = [request_headers("/v1/completions"), *chunks, request_body(b"")]
    it = exchange()
    tracemalloc.start()
    try:
        for message in messages[:-1]:
            it.stream.receive(message, 1)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        out = it.stream.receive(messages[-1], 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(map(len, out)) > size
    assert held < size / 8, "chunks are held where they came"
    assert peak - held < 2.2 * size, "one copy to read it whole, one to send it on"

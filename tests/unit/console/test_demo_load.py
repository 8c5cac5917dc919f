from __future__ import annotations

from support.raw_server import http, raw_server
from zerohop_console.demo.load import probe, small


async def test_a_slow_machine_is_probed_for_a_bounded_time() -> None:
    async with raw_server(http(b"{}")) as server:
        port = server.address.port
        picked_s, plain_s = await probe(port, port, small("tiny", real=False), 10**9, limit_s=0.0)
    assert picked_s
    assert len(picked_s) == len(plain_s)

"""A model server that answers at once: what is measured with it is the way, not the server."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

from zerohop_console.mockserver.engine import EngineSettings
from zerohop_console.mockserver.page import Measurements, Page

ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":{"role":'
    b'"assistant","content":"An answer."},"finish_reason":"stop"}],"usage":{"prompt_tokens":512,"completion_tokens":3}}'
)
MODELS = b'{"object":"list","data":[{"id":"tiny","object":"model","max_model_len":32768}]}'


def _whole(content_type: str, body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class Backend(asyncio.Protocol):
    """Counts bytes and answers; one request at a time per connection."""

    answer = _whole("application/json", ANSWER)
    models = _whole("application/json", MODELS)
    health = _whole("text/plain", b"")
    metrics = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        if buffer.startswith(b"POST"):
            head = buffer[:end].lower()
            length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            if length:
                if len(buffer) < end + 4 + int(length):
                    return
            elif not buffer.endswith(b"0\r\n\r\n"):
                return
            self._transport.write(self.answer)
        elif buffer.startswith(b"GET /metrics"):
            self._transport.write(self.metrics)
        elif buffer.startswith(b"GET /v1/models"):
            self._transport.write(self.models)
        else:
            self._transport.write(self.health)
        self._buffer = b""


async def main(count: int) -> None:
    page = Page("tiny", EngineSettings(), Measurements(), lora=False, padding_bytes=16_000)
    Backend.metrics = _whole("text/plain; version=0.0.4", page.text().encode())
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Backend, "127.0.0.1", 0, backlog=1024) for _ in range(count)]
    for server in servers:
        print("serving", server.sockets[0].getsockname()[1], flush=True)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))

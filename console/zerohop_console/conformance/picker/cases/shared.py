"""Steps and checks that many cases share."""

from __future__ import annotations

from zerohop_console.conformance.picker import checks as c
from zerohop_console.conformance.picker.script import CHAT, RequestBody, RequestHeaders, Step, Until, Wait

HEADERS, BODY_END, TRAILERS = (
    Wait(Until.REQUEST_HEADERS),
    Wait(Until.REQUEST_BODY_END),
    Wait(Until.REQUEST_TRAILERS),
)
#: What holds for every request that is forwarded in FULL_DUPLEX_STREAMED mode.
FORWARDED = (c.picked, c.headers_first, c.body_identical, c.destination_overwrites)
#: A chat request of 300 kB.
BIG = b'{"model":"conformance","messages":[{"role":"user","content":"' + b"lorem ipsum " * 25_000 + b'"}]}'


def cut(body: bytes, size: int, *, last_empty: bool = False) -> tuple[RequestBody, ...]:
    """A body in chunks of `size` bytes, its end in the last one or in an empty one after it."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    if last_empty:
        parts.append(b"")
    return tuple(RequestBody(part, end=at == len(parts) - 1) for at, part in enumerate(parts))


def posted(body: bytes = CHAT, **headers: object) -> tuple[Step, ...]:
    """A request with its body in one chunk, and the wait for the body's end; `headers` as of `RequestHeaders`."""
    return RequestHeaders(**headers), RequestBody(body), BODY_END  # type: ignore[arg-type]

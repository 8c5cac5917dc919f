"""Authorities that are cluster names, before libnghttp2 sees them; checked against another HPACK implementation."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngh2 import Connection, RequestReceived, Role, StreamClosed

from zerohop_picker.fronts.authority import AuthorityFilter

hpack = pytest.importorskip("hpack")

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
ISTIO = "outbound|9002||zerohop.inference.svc.cluster.local"
ENVOY_GATEWAY = "envoyextensionpolicy/default/picker/0"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class Peer:
    """A gateway: encodes requests, with Huffman codes and a dynamic table of its own."""

    def __init__(self, *, huffman: bool = True) -> None:
        self._encoder = hpack.Encoder()
        self._huffman = huffman
        self._streams = itertools.count(1, 2)

    def request(self, authority: str, more: dict[str, str] | None = None, *, flags: int = 0x4) -> bytes:
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/p"),
            (":authority", authority),
            *(more or {}).items(),
        ]
        block = self._encoder.encode(headers, huffman=self._huffman)
        if flags & 0x20:
            block = bytes(5) + block
        if flags & 0x8:
            block = b"\3" + block + bytes(3)
        stream = next(self._streams)
        return frame(1, flags, stream, block) + frame(0, 0, stream, b"body|body")


def seen(data: bytes, cuts: list[int] | None = None) -> list[str]:
    """The authorities that libnghttp2 makes of `data`, fed through the filter in pieces; a reset is `reset`."""
    connection = Connection(Role.SERVER)
    connection.initiate_connection()
    screen = AuthorityFilter()
    found: list[str] = []
    begin = 0
    for end in [*sorted(cuts or []), len(data)]:
        connection.receive_data(screen.feed(memoryview(data)[begin:end]))
        begin = end
        for event in connection.events():
            if isinstance(event, RequestReceived):
                found += [bytes(value).decode() for name, value in _pairs(event) if bytes(name) == b":authority"]
            elif isinstance(event, StreamClosed):
                found.append("reset")
    return found


def _pairs(event: RequestReceived) -> list[tuple[bytes, bytes]]:
    return [(_bytes(header[0]), _bytes(header[1])) for header in event.headers]


def _bytes(value: object) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[call-overload]


@pytest.mark.parametrize("huffman", [True, False])
@pytest.mark.parametrize("authority", [ISTIO, ENVOY_GATEWAY, 'a b<c>\\^`{}#?"|'])
def test_cluster_names_get_through(authority: str, huffman: bool) -> None:
    peer = Peer(huffman=huffman)
    data = PREFACE + b"".join(peer.request(authority) for _ in range(3))
    (fit,) = set(seen(data))
    assert len(fit) == len(authority)
    assert all(ours == theirs or ours == "." for ours, theirs in zip(fit, authority, strict=True))


def test_tables_stay_in_step_when_entries_come_and_go() -> None:
    """Later requests refer to the replaced entry by index, and new entries push it out of the table."""
    peer = Peer()
    data = PREFACE
    for index in range(60):
        data += peer.request(ISTIO, {f"x-long-{index}": f"{index}" * 100})
    assert seen(data) == [ISTIO.replace("|", ".")] * 60


@pytest.mark.parametrize("flags", [0x4, 0x4 | 0x8, 0x4 | 0x20, 0x4 | 0x8 | 0x20, 0x5])
def test_padding_and_priority(flags: int) -> None:
    assert seen(PREFACE + Peer().request(ISTIO, flags=flags))[0] == ISTIO.replace("|", ".")


def test_cut_at_every_place() -> None:
    data = PREFACE + Peer().request(ISTIO)
    for place in range(len(data) + 1):
        assert seen(data, [place]) == [ISTIO.replace("|", ".")]
    assert seen(data, list(range(len(data)))) == [ISTIO.replace("|", ".")]


def test_a_usual_authority_is_left_alone_and_not_looked_at_again() -> None:
    data = PREFACE + Peer().request("picker.example:9002")
    screen = AuthorityFilter()
    given_bytes = memoryview(data)
    assert screen.feed(given_bytes) is given_bytes
    assert not screen.looking
    assert seen(data) == ["picker.example:9002"]


def test_nothing_behind_a_usual_authority_is_kept_back() -> None:
    """The front stops feeding the filter once it has seen enough, so what it holds then would be lost."""
    data = PREFACE + Peer().request("picker.example:9002") + frame(0, 0, 1, b"more")
    for first in range(len(data) + 1):
        for second in range(first, min(first + 30, len(data) + 1)):
            screen, out = AuthorityFilter(), b""
            for piece in (data[:first], data[first:second], data[second:]):
                out += bytes(screen.feed(piece)) if screen.looking else piece
            assert out == data


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_any_bytes_come_out_whole_and_in_order(junk: bytes, cuts: list[int]) -> None:
    """Whatever is sent, nothing is lost but what is held back of an unfinished frame, and nothing raises."""
    screen = AuthorityFilter()
    data = PREFACE + junk
    out, begin = b"", 0
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        out += bytes(screen.feed(data[begin:end]))
        begin = end
    assert data.startswith(out) or len(out) <= len(data) + 100
    assert out[: len(PREFACE)] == PREFACE[: len(out)]


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=80), st.booleans())
def test_any_printable_authority_is_accepted(authority: str, huffman: bool) -> None:
    (fit,) = seen(PREFACE + Peer(huffman=huffman).request(authority.strip() or "a"))
    assert fit != "reset"

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerohop_picker.fronts.framing import FramingError, MessageReader, frame


def framed(*messages: bytes) -> bytes:
    return b"".join(b"\0" + len(message).to_bytes(4, "big") + message for message in messages)


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=20))
def test_any_split_gives_the_same_messages(messages: list[bytes], cuts: list[int]) -> None:
    data = framed(*messages)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = MessageReader(100)
    got = [message for start, end in itertools.pairwise(edges) for message in reader.feed(data[start:end])]
    assert got == messages
    assert reader.held_bytes == 0


def test_every_byte_apart() -> None:
    messages = [b"a" * 300, b"", b"b"]
    reader = MessageReader(1000)
    got = [message for byte in framed(*messages) for message in reader.feed(bytes([byte]))]
    assert got == messages


def test_what_waits_is_counted() -> None:
    reader = MessageReader(1000)
    assert reader.feed(b"\0\0\0\0\x0aabc") == []
    assert reader.held_bytes == 3
    assert reader.feed(b"defghij\0") == [b"abcdefghij"]
    assert reader.held_bytes == 1


def test_dripped_bytes_are_put_together() -> None:
    reader = MessageReader(100_000)
    for byte in framed(b"x" * 5000)[:-1]:
        assert not reader.feed(bytes([byte]))
    assert len(reader._chunks) < 300
    assert reader.feed(b"x") == [b"x" * 5000]


def test_a_large_message_is_refused_by_its_prefix() -> None:
    reader = MessageReader(100)
    assert reader.feed(framed(b"x" * 100)) == [b"x" * 100]
    with pytest.raises(FramingError) as error:
        reader.feed(b"\0\0\0\0\x65")
    assert error.value.status == 8
    assert error.value.announced_bytes == 101


def test_a_compressed_message_is_refused() -> None:
    with pytest.raises(FramingError) as error:
        MessageReader(100).feed(b"\1\0\0\0\1x")
    assert error.value.status == 12


@given(st.lists(st.binary(max_size=40) | st.just(b"y" * 70_000), max_size=6))
def test_framed_pieces_read_back(messages: list[bytes]) -> None:
    pieces = frame(messages)
    reader = MessageReader(100_000)
    assert [message for piece in pieces for message in reader.feed(piece)] == messages

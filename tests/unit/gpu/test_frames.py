"""The messages between the agent and its NVML child, whole and cut."""

from __future__ import annotations

from typing import Any

import pytest

from zerohop_agent.collectors.gpu.frames import MAX_FRAME_BYTES, Decoder, encode
from zerohop_agent.collectors.gpu.reading import Board, GpuReading


def test_messages_cut_anywhere_come_out_whole() -> None:
    messages: list[dict[str, Any]] = [
        {"t": "xid", "code": 79},
        {"t": "read", "gpus": {"a": {"lost": True}}},
        {"t": "end", "text": "x" * 300},
    ]
    stream = b"".join(encode(message) for message in messages)
    for size in (1, 3, 7, len(stream)):
        decoder = Decoder()
        found = [
            message for start in range(0, len(stream), size) for message in decoder.feed(stream[start : start + size])
        ]
        assert found == messages


@pytest.mark.parametrize(
    "data", [b"Traceback (most recent call last)", (MAX_FRAME_BYTES + 1).to_bytes(4, "little"), b"\x01\0\0\0\x05"]
)
def test_bytes_of_somebody_else_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Decoder().feed(data)


def test_a_reading_says_only_what_is_known_and_ignores_what_it_does_not_know() -> None:
    reading = GpuReading(observed_ns=5, utilization=0.0, lost=False)
    values = reading.as_map()
    assert values["utilization"] == 0.0
    assert "power_watts" not in values
    assert GpuReading.from_map({**values, "of_a_newer_child": 1}) == reading


def test_an_instance_knows_its_board() -> None:
    board = Board("GPU-a", "H100", 0, "00:10", mig={"mode": "enabled"})
    instance = Board("MIG-b", "H100", 0, "00:10", mig={"parent": "GPU-a", "gi_id": 3, "mig_profile": "1g.10gb"})
    assert (board.is_instance, board.parent_uuid) == (False, "GPU-a")
    assert (instance.is_instance, instance.parent_uuid) == (True, "GPU-a")

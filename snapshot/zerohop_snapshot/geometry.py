"""Where things lie inside one `node.snap`: computed from its capacities, stored in its header, checked by readers.

fields of the kind SNAP, from byte 128
offset size type  field
128    8    u64   sequence             the published sequence; stored last, as one aligned word
136    4    u32   endpoint_capacity    a multiple of 8
140    4    u32   gpu_capacity
144    8    u64   cold_capacity_bytes  of one cold slot
152    4    u32   slot_count           3
156    4    u32   endpoint_row_bytes
160    4    u32   gpu_row_bytes
164    4    u32   host_bytes
168    8    u64   row_table_offset
176    8    u64   hot_offset           of hot slot 0
184    8    u64   hot_slot_bytes
192    8    u64   cold_offset          of cold slot 0

slot header, 128 bytes, then the endpoint block, then (at a fixed place) the node block
0      8    u64   sequence
8      8    u64   published_ns         CLOCK_MONOTONIC
16     8    u64   wall_ns              CLOCK_REALTIME, for people
24     8    u64   cold_generation      0 = no cold map yet
32     8    u64   refusals             endpoints refused because the table was full
40     4    u32   cold_bytes
44     4    u32   cold_crc32
48     4    u32   row_stride           values per column in this slot
52     4    u32   endpoint_count       rows with Flag.USED
56     4    u32   gpu_count            rows with GpuFlag.USED
60     4    u32   node_crc32           of the node block
64     56         reserved
120    4    u32   crc32                of bytes 0..119 of this header and the endpoint block
124    4    u32   reserved
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from .header import HEADER_BYTES
from .layout import ENDPOINT_ROW_BYTES, GPU_ROW_BYTES, HOST_BYTES, ROW_ALIGNMENT, SLOT_COUNT

__all__ = [
    "CRC_OFFSET",
    "FILE_NAME",
    "KIND",
    "ROW_ENTRY",
    "SEQUENCE_WORD",
    "SLOT_HEADER",
    "SLOT_HEADER_BYTES",
    "Geometry",
]

FILE_NAME: Final = "node.snap"
KIND: Final = b"SNAP"
#: index of the sequence in the file seen as 8-byte words
SEQUENCE_WORD: Final = 128 // 8
SLOT_HEADER: Final = struct.Struct("<QQQQQIIIIII")
SLOT_HEADER_BYTES: Final = 128
CRC_OFFSET: Final = 120
#: row table entry: 16-byte digest of the endpoint's key, generation, 1 = in use
ROW_ENTRY: Final = struct.Struct("<16sII8x")

_SPECIFIC: Final = struct.Struct("<QIIQIIIIQQQQ")


def _align(size: int, to: int) -> int:
    return -(-size // to) * to


@dataclass(frozen=True, slots=True)
class Geometry:
    """Capacities of one file and what follows from them."""

    endpoint_capacity: int
    gpu_capacity: int
    cold_capacity_bytes: int

    @classmethod
    def of(cls, endpoint_capacity: int, gpu_capacity: int, cold_capacity_bytes: int) -> Geometry:
        """Capacities rounded up to what the layout needs (rows to 8, bytes to 64)."""
        return cls(_align(endpoint_capacity, ROW_ALIGNMENT), gpu_capacity, _align(cold_capacity_bytes, 64))

    @property
    def row_table_offset(self) -> int:
        """Byte offset of the row table."""
        return HEADER_BYTES

    @property
    def hot_offset(self) -> int:
        """Byte offset of hot slot 0."""
        return _align(self.row_table_offset + self.endpoint_capacity * ROW_ENTRY.size, 64)

    @property
    def node_offset(self) -> int:
        """Byte offset of the node block within a hot slot."""
        return SLOT_HEADER_BYTES + self.endpoint_capacity * ENDPOINT_ROW_BYTES

    @property
    def node_bytes(self) -> int:
        """Size of the node block."""
        return self.gpu_capacity * GPU_ROW_BYTES + HOST_BYTES

    @property
    def hot_slot_bytes(self) -> int:
        """Size of one hot slot."""
        return _align(self.node_offset + self.node_bytes, 64)

    @property
    def cold_offset(self) -> int:
        """Byte offset of cold slot 0."""
        return self.hot_offset + SLOT_COUNT * self.hot_slot_bytes

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return self.cold_offset + SLOT_COUNT * self.cold_capacity_bytes

    def pack(self, sequence: int) -> bytes:
        """The header fields of this kind."""
        return _SPECIFIC.pack(
            sequence, self.endpoint_capacity, self.gpu_capacity, self.cold_capacity_bytes, SLOT_COUNT,
            ENDPOINT_ROW_BYTES, GPU_ROW_BYTES, HOST_BYTES,
            self.row_table_offset, self.hot_offset, self.hot_slot_bytes, self.cold_offset,
        )  # fmt: skip

    @classmethod
    def unpack(cls, header: bytes) -> Geometry | None:
        """The geometry in a file's header; None when its numbers contradict each other."""
        fields = _SPECIFIC.unpack_from(header, 128)
        geometry = cls(fields[1], fields[2], fields[3])
        return geometry if geometry.pack(fields[0]) == header[128 : 128 + _SPECIFIC.size] else None

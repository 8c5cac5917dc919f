"""The layout is a contract: the table is well formed, its golden bytes do not move, and C reads what Python wrote."""

from __future__ import annotations

import enum
import hashlib
import json
import math
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from zerohop_snapshot import SnapshotReader, SnapshotWriter
from zerohop_snapshot.geometry import FILE_NAME, SLOT_HEADER_BYTES, Geometry
from zerohop_snapshot.layout import (
    ENDPOINT_COLUMNS,
    GPU_COLUMNS,
    HOST_FIELDS,
    LAYOUT_VERSION,
    SIZE,
    Column,
    DrainReason,
    Flag,
    GpuFlag,
    SlowdownReason,
    UnhealthyReason,
    ValueSource,
    column_offsets,
    reason_bytes,
    reasons_word,
)

ROOT = Path(__file__).parents[3]
ENUMS: tuple[tuple[type[enum.IntEnum | enum.IntFlag], str], ...] = (
    (Flag, "ZH_FLAG"),
    (GpuFlag, "ZH_GPU"),
    (DrainReason, "ZH_DRAIN"),
    (UnhealthyReason, "ZH_UNHEALTHY"),
    (SlowdownReason, "ZH_SLOWDOWN"),
    (ValueSource, "ZH_SOURCE"),
)
GOLDEN = ROOT / "tests" / "golden" / f"snapshot-v{LAYOUT_VERSION}.json"


def written(shm: Path) -> SnapshotWriter:
    """A snapshot in which every value differs from every other."""
    writer = SnapshotWriter(shm, endpoint_capacity=16, gpu_capacity=3, cold_capacity_bytes=256)
    for key in ("a", "b", "c"):
        row = writer.add_endpoint(key)
        assert row is not None
        for number, column in enumerate(ENDPOINT_COLUMNS):
            if column.name not in ("generation", "flags"):
                writer.endpoints.set(row, column.name, 1000 * row + number)
    writer.endpoints.set(1, "kv_cache_usage", None)
    for gpu in range(3):
        for number, column in enumerate(GPU_COLUMNS):
            writer.gpus.set(gpu, column.name, 5000 + 100 * gpu + number)
    writer.gpus.set(2, "power_watts", None)
    for number, column in enumerate(HOST_FIELDS):
        writer.host.set(0, column.name, 9000 + number)
    writer.set_cold(b"\x81\xa1v\x01")
    writer.publish(now_ns=123_456_789)
    return writer


@pytest.mark.parametrize("columns", [ENDPOINT_COLUMNS, GPU_COLUMNS, HOST_FIELDS])
def test_columns_are_aligned_named_once_and_described(columns: tuple[Column, ...]) -> None:
    assert len({column.name for column in columns}) == len(columns)
    for name, (offset, code) in column_offsets(columns, 8 if columns is ENDPOINT_COLUMNS else 1).items():
        assert offset % SIZE[code] == 0, name
    for column in columns:
        assert all((column.meaning, column.unit, column.unknown))


def test_reasons_pack_and_unpack() -> None:
    word = reasons_word(drain=6, unhealthy=9, slowdown=4, source=2)
    assert word == 0x02040906
    assert reason_bytes(word) == (6, 9, 4, 2)


def test_the_bytes_of_this_layout_version_do_not_change(tmp_path: Path) -> None:
    """A failure here means: a reader of the last release would misread. Move LAYOUT_VERSION and add a golden file."""
    writer = written(tmp_path)
    geometry = writer.geometry
    raw = (tmp_path / FILE_NAME).read_bytes()
    slot = raw[geometry.hot_offset + geometry.hot_slot_bytes :][: geometry.hot_slot_bytes]
    slot = slot[:16] + bytes(8) + slot[24:120] + bytes(4) + slot[124:]  # wall_ns and, with it, the checksum vary
    found = {
        "file_bytes": len(raw),
        "snap_header": raw[128:256].hex(),
        "slot_header": slot[:SLOT_HEADER_BYTES].hex(),
        "endpoint_block_sha256": hashlib.sha256(slot[SLOT_HEADER_BYTES : geometry.node_offset]).hexdigest(),
        "node_block_sha256": hashlib.sha256(
            slot[geometry.node_offset : geometry.node_offset + geometry.node_bytes]
        ).hexdigest(),
        "row_table_entry": raw[256 : 256 + 32].hex(),
        "endpoint_columns": [f"{column.name} {column.code}" for column in ENDPOINT_COLUMNS],
        "gpu_columns": [f"{column.name} {column.code}" for column in GPU_COLUMNS],
        "host_fields": [f"{column.name} {column.code}" for column in HOST_FIELDS],
    }
    writer.close()
    assert found == json.loads(GOLDEN.read_text())


def test_a_file_is_laid_out_where_its_header_says(tmp_path: Path) -> None:
    writer = written(tmp_path)
    raw = (tmp_path / FILE_NAME).read_bytes()
    geometry = Geometry.unpack(raw[:256])
    assert geometry == writer.geometry
    assert geometry is not None
    offset, code = column_offsets(ENDPOINT_COLUMNS, 8)["kv_capacity_tokens"]
    start = geometry.hot_offset + 1 % 3 * geometry.hot_slot_bytes + SLOT_HEADER_BYTES + offset
    number = [column.name for column in ENDPOINT_COLUMNS].index("kv_capacity_tokens")
    assert struct.unpack_from(f"<3{code}", raw, start) == (number, 1000 + number, 2000 + number)
    writer.close()


def c_reader_source() -> str:
    """A C program that prints every field of the newest slot, made from the header's own accessors."""
    types = {"Q": ("%llu", "(unsigned long long)"), "I": ("%u", ""), "f": ("%.9g", "(double)"), "d": ("%.17g", "")}

    def lines(prefix: str, columns: tuple[Column, ...], block: str, stride: str, count: str) -> list[str]:
        out = []
        for column in columns:
            form, cast = types[column.code]
            name = column.name
            out.append(
                f'    for (uint32_t i = 0; i < {count}; i++) printf("{prefix} {name} %u {form}\\n", i, '
                f"{cast}zh_{prefix}_{name}({block}, {stride})[i]);"
            )
        return out

    enums = [
        f'    printf("enum {prefix}_{member.name} 0 %d\\n", {prefix}_{member.name});'
        for enumeration, prefix in ENUMS
        for member in enumeration
    ]
    body = [
        *lines("endpoint", ENDPOINT_COLUMNS, "block", "s->row_stride", "s->row_stride"),
        *lines("gpu", GPU_COLUMNS, "node", "h->gpu_capacity", "h->gpu_capacity"),
        *lines("host", HOST_FIELDS, "node + h->gpu_capacity * ZH_GPU_ROW_BYTES", "1", "1"),
        *enums,
    ]
    frame = (ROOT / "tests" / "native" / "snapshot" / "reader.c").read_text()
    return frame.replace("/* EVERY FIELD */", "\n".join(body))


def test_a_c_program_reads_every_field_as_python_does(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) on this machine")
    writer = written(tmp_path)
    source, program = tmp_path / "reader.c", tmp_path / "reader"
    source.write_text(c_reader_source())
    subprocess.run(
        [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", f"-I{ROOT / 'proto'}", source, "-o", program],
        check=True,
    )
    done = subprocess.run([program, tmp_path / FILE_NAME], capture_output=True, text=True, check=True)
    writer.close()
    snapshot = SnapshotReader(tmp_path).read()
    assert snapshot is not None
    found = {}
    for line in done.stdout.splitlines():
        kind, name, index, text = line.split()
        found[kind, name, int(index)] = float(text)
    expected: dict[tuple[str, str, int], float] = {
        ("header", "sequence", 0): 1, ("header", "published_ns", 0): 123_456_789, ("header", "cold_bytes", 0): 4,
        ("header", "endpoint_count", 0): 3, ("header", "version", 0): LAYOUT_VERSION,
    }  # fmt: skip
    for column in ENDPOINT_COLUMNS:
        for row, number in enumerate(snapshot.column(column.name).tolist()):
            expected["endpoint", column.name, row] = number
    for column in GPU_COLUMNS:
        for gpu, number in enumerate(snapshot.gpu(column.name).tolist()):
            expected["gpu", column.name, gpu] = number
    for column in HOST_FIELDS:
        expected["host", column.name, 0] = snapshot.host(column.name)
    for enumeration, prefix in ENUMS:
        for member in enumeration:
            expected["enum", f"{prefix}_{member.name}", 0] = int(member)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        same = found[key] == pytest.approx(value, rel=1e-6) or (math.isnan(found[key]) and math.isnan(value))
        assert same, (key, found[key], value)


def test_the_c_header_names_every_column_and_size() -> None:
    text = (ROOT / "proto" / "snapshot.h").read_text()
    for prefix, columns in (("endpoint", ENDPOINT_COLUMNS), ("gpu", GPU_COLUMNS), ("host", HOST_FIELDS)):
        assert re.findall(rf"zh_{prefix}_(\w+)\(const", text) == [column.name for column in columns]

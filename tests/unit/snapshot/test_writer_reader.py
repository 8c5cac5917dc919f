"""One writer and one reader of node.snap in one process: what goes in comes out, unknown stays unknown."""

from __future__ import annotations

import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from zerohop_snapshot import ColdTooLarge, Flag, SnapshotError, SnapshotReader, SnapshotWriter, WriterLocked
from zerohop_snapshot.geometry import FILE_NAME, SLOT_HEADER_BYTES
from zerohop_snapshot.layout import ENDPOINT_COLUMNS, GPU_COLUMNS, HOST_FIELDS


def reread(shm: Path) -> SnapshotReader:
    reader = SnapshotReader(shm)
    reader.read()
    return reader


def test_every_column_comes_back_as_written(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path, endpoint_capacity=16, gpu_capacity=2)
    row = writer.add_endpoint("pod-a/8000")
    assert row == 0
    for number, column in enumerate(ENDPOINT_COLUMNS):
        if column.name not in ("generation", "flags"):
            writer.endpoints.set(row, column.name, number + 1)
    for number, column in enumerate(GPU_COLUMNS):
        writer.gpus.set(1, column.name, number + 100)
    for number, column in enumerate(HOST_FIELDS):
        writer.host.set(0, column.name, number + 1000)
    writer.set_cold(b"cold")
    assert writer.publish(now_ns=77) == 1
    snapshot = SnapshotReader(tmp_path).read()
    assert snapshot is not None
    assert (snapshot.sequence, snapshot.published_ns, snapshot.endpoint_count) == (1, 77, 1)
    assert snapshot.cold == b"cold"
    for number, column in enumerate(ENDPOINT_COLUMNS):
        expected = {"generation": 1, "flags": Flag.USED}.get(column.name, number + 1)
        assert snapshot.column(column.name)[0] == expected, column.name
    for number, column in enumerate(GPU_COLUMNS):
        assert snapshot.gpu(column.name)[1] == number + 100, column.name
    for number, column in enumerate(HOST_FIELDS):
        assert snapshot.host(column.name) == number + 1000, column.name
    writer.close()


def test_values_that_were_never_set_or_were_cleared_are_unknown(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path)
    row = writer.add_endpoint("a")
    assert row is not None
    writer.endpoints.set(row, "waiting", 0.0)
    writer.endpoints.set(row, "running", 3)
    writer.endpoints.set(row, "running", None)
    writer.publish()
    snapshot = SnapshotReader(tmp_path).read()
    assert snapshot is not None
    assert snapshot.column("waiting")[row] == 0.0
    for name in ("running", "kv_cache_usage", "slowdown", "prompt_tokens"):
        assert math.isnan(snapshot.column(name)[row]), name
    assert snapshot.column("observed_ns")[row] == 0
    assert math.isnan(snapshot.gpu("utilization")[0])
    assert math.isnan(snapshot.host("load1"))
    writer.close()


def test_a_copy_stays_as_it_was_when_the_writer_goes_on(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path)
    row = writer.add_endpoint("a")
    assert row is not None
    reader = SnapshotReader(tmp_path)
    copies = []
    for value in range(6):
        writer.endpoints.set(row, "waiting", value)
        writer.publish()
        copies.append(reader.read())
    assert [copy.column("waiting")[row] for copy in copies if copy] == [0, 1, 2, 3, 4, 5]
    assert reader.read() is copies[-1], "an unchanged sequence costs no copy"
    writer.close()


def test_a_full_table_refuses_counts_it_and_overwrites_nothing(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path, endpoint_capacity=8)
    rows = [writer.add_endpoint(f"endpoint {number}") for number in range(8)]
    assert rows == list(range(8))
    assert writer.add_endpoint("one too many") is None
    assert writer.add_endpoint("endpoint 3") == 3
    writer.publish()
    snapshot = SnapshotReader(tmp_path).read()
    assert snapshot is not None
    assert (snapshot.refusals, snapshot.endpoint_count) == (1, 8)
    writer.remove_endpoint("endpoint 3")
    assert writer.add_endpoint("one too many") == 3
    writer.close()


def test_a_reused_row_has_a_new_generation_and_no_old_values(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path)
    row = writer.add_endpoint("old")
    assert row is not None
    writer.endpoints.set(row, "waiting", 9)
    writer.remove_endpoint("old")
    writer.remove_endpoint("old")
    assert writer.add_endpoint("new") == row
    writer.publish()
    snapshot = SnapshotReader(tmp_path).read()
    assert snapshot is not None
    assert snapshot.column("generation")[row] == 2
    assert math.isnan(snapshot.column("waiting")[row])
    writer.close()


def test_a_restarted_writer_goes_on_with_sequence_rows_and_values(tmp_path: Path) -> None:
    first = SnapshotWriter(tmp_path)
    for key in ("gone", "kept"):
        row = first.add_endpoint(key)
        assert row is not None
        first.endpoints.set(row, "waiting", row + 5)
    first.set_cold(b"names")
    for _ in range(4):
        first.publish()
    first.close()
    reader = SnapshotReader(tmp_path)
    assert reader.read() is not None
    second = SnapshotWriter(tmp_path)
    assert second.sequence == 4
    assert second.add_endpoint("kept") == 1
    assert second.endpoints.get(1, "waiting") == 6
    assert second.cold == b"names"
    assert second.drop_inherited() == 1
    assert second.publish() == 5
    snapshot = reader.read()
    assert snapshot is not None
    assert (snapshot.sequence, snapshot.endpoint_count) == (5, 1)
    assert list(snapshot.column("generation")[:2]) == [0, 1]
    assert second.add_endpoint("fresh") == 0
    assert second.generation(0) == 2, "the generation outlives the restart"
    second.close()


def test_another_capacity_is_a_new_inode_that_readers_follow_with_the_sequence(tmp_path: Path) -> None:
    first = SnapshotWriter(tmp_path, endpoint_capacity=8)
    first.add_endpoint("a")
    first.publish()
    reader = SnapshotReader(tmp_path)
    kept = reader.read(now_ns=1)
    first.close()
    second = SnapshotWriter(tmp_path, endpoint_capacity=16)
    assert reader.read(now_ns=300_000_000) is kept, "the new file has nothing yet: the last good copy stands"
    second.add_endpoint("b")
    assert second.publish() == 2
    snapshot = reader.read(now_ns=600_000_000)
    assert snapshot is not None
    assert snapshot.sequence == 2
    second.close()


def test_a_second_writer_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path)
    with pytest.raises(WriterLocked, match=rf"already written by another process \(pid {os.getpid()}\)"):
        SnapshotWriter(tmp_path)
    writer.close()
    SnapshotWriter(tmp_path).close()


def test_a_cold_map_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path, cold_capacity_bytes=64)
    writer.set_cold(b"x" * 64)
    with pytest.raises(ColdTooLarge, match="has 65 bytes, its slot 64"):
        writer.set_cold(b"y" * 65)
    writer.publish()
    snapshot = SnapshotReader(tmp_path).read()
    assert snapshot is not None
    assert snapshot.cold == b"x" * 64
    writer.close()


def test_the_file_is_private_to_user_and_group(tmp_path: Path) -> None:
    SnapshotWriter(tmp_path / "new" / "dir").close()
    path = tmp_path / "new" / "dir" / FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750


def test_an_unknown_group_and_an_impossible_directory_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="there is no group 'no such group'"):
        SnapshotWriter(tmp_path, group="no such group")
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"], "no temporary file is left"
    (tmp_path / "file").write_text("")
    with pytest.raises(SnapshotError, match="cannot create the shm directory"):
        SnapshotWriter(tmp_path / "file" / "below")


def test_a_full_file_system_fails_at_the_start_and_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys, pathlib\n"
        "from zerohop_snapshot import SnapshotError, SnapshotWriter\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n    SnapshotWriter(pathlib.Path(sys.argv[1]))\n"
        "except SnapshotError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert f"{tmp_path / FILE_NAME}: cannot create it" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME + ".lock"]


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))


@pytest.mark.parametrize(
    ("make", "state", "sentence"),
    [
        (lambda path: path.unlink(), "absent", "does not exist; is the agent running"),
        (lambda path: path.write_bytes(b""), "short", "is empty"),
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "short", "has 5000 bytes, fewer than its header"),
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "short", "has 100 bytes"),
        (lambda path: path.write_bytes(b"hello" * 100_000), "foreign", "is not a zerohop snapshot"),
        (lambda path: flip(path, 12), "version", "has layout version 17, this reader knows 1"),
        (lambda path: flip(path, 16), "foreign", "is not a zerohop snapshot"),
        (lambda path: flip(path, 32), "reboot", "written before the last reboot"),
        (lambda path: flip(path, 137), "corrupt", "its header contradicts itself"),
    ],
    ids=["absent", "empty", "short", "tiny", "foreign", "version", "byte order", "reboot", "geometry"],
)
def test_a_bad_file_is_a_state_and_a_sentence_never_an_exception(
    tmp_path: Path, make: object, state: str, sentence: str
) -> None:
    writer = SnapshotWriter(tmp_path)
    writer.add_endpoint("a")
    writer.publish()
    writer.close()
    assert callable(make)
    make(tmp_path / FILE_NAME)
    reader = reread(tmp_path)
    assert reader.read() is None
    assert (reader.state, sentence in reader.detail) == (state, True), reader.detail
    again = SnapshotWriter(tmp_path)
    again.add_endpoint("a")
    again.publish()
    later = reader.read(now_ns=2**62)
    assert later is not None, "a reader recovers once the agent has replaced the file"
    again.close()


@pytest.mark.parametrize("where", [0, 8, 24, 48, 60, SLOT_HEADER_BYTES, SLOT_HEADER_BYTES + 1300])
def test_any_flipped_bit_of_the_slot_is_noticed_and_the_last_good_copy_stands(tmp_path: Path, where: int) -> None:
    writer = SnapshotWriter(tmp_path)
    writer.add_endpoint("a")
    writer.publish()
    reader = SnapshotReader(tmp_path)
    good = reader.read()
    assert good is not None
    writer.publish()
    geometry = writer.geometry
    flip(tmp_path / FILE_NAME, geometry.hot_offset + 2 % 3 * geometry.hot_slot_bytes + where)
    assert reader.read() is good
    assert reader.state == "corrupt"
    assert reader.torn > 0
    writer.publish()
    healed = reader.read()
    assert healed is not None
    assert (healed.sequence, reader.state) == (3, "ok")
    writer.close()


def test_a_flipped_bit_of_the_cold_map_is_noticed(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path)
    writer.set_cold(b"names of endpoints")
    writer.publish()
    geometry = writer.geometry
    flip(tmp_path / FILE_NAME, geometry.cold_offset + 1 % 3 * geometry.cold_capacity_bytes + 4)
    reader = SnapshotReader(tmp_path)
    assert reader.read() is None
    assert reader.state == "corrupt"
    writer.close()


def test_a_reader_without_the_node_block_says_so(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path)
    writer.publish()
    snapshot = SnapshotReader(tmp_path, node=False).read()
    assert snapshot is not None
    with pytest.raises(ValueError, match="node=False"):
        snapshot.gpu("utilization")
    writer.close()

"""Engine and picker cells: one writer, live readers, dead writers ignored."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from support.waiting import eventually
from zerohop_snapshot import EngineCells, EngineCellWriter, PeerCells, PickerCell, SnapshotError, WriterLocked
from zerohop_snapshot.cells import HEARTBEAT_BOUND_NS, CellFolder
from zerohop_snapshot.enginecell import TEXT_BYTES
from zerohop_snapshot.header import Identity, own_identity
from zerohop_snapshot.pickercell import LOG_ENTRY, PeerCell

#: far enough apart for the directory to be listed again
LATER_NS = 1_000_000_000


def test_an_engine_state_comes_back_and_unset_fields_are_unknown(tmp_path: Path) -> None:
    cell = EngineCellWriter(tmp_path, "vllm-0")
    cells = EngineCells(tmp_path)
    assert list(cells.read()) == [], "before the first step there is nothing to say"
    cell.set("waiting", 4)
    cell.set("running", 9)
    cell.set("running", None)
    assert cell.set_text({"port": 8000, "lora_running": ["a"]})
    cell.publish(now_ns=55)
    (state,) = cells.read()
    assert (state.name, state.sequence, state.written_ns) == ("vllm-0", 1, 55)
    assert state.fields["waiting"] == 4
    assert math.isnan(state.fields["running"])
    assert state.text == {"port": 8000, "lora_running": ["a"]}
    cell.set("waiting", 5)
    cell.publish()
    assert [state.fields["waiting"] for state in cells.read()] == [5]
    cell.close()
    assert list(cells.read(time.monotonic_ns() + LATER_NS)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_too_long_keeps_the_old_one(tmp_path: Path) -> None:
    cell = EngineCellWriter(tmp_path, "e")
    assert cell.set_text({"a": 1})
    assert not cell.set_text({"a": "x" * TEXT_BYTES})
    cell.publish()
    assert [state.text for state in EngineCells(tmp_path).read()] == [{"a": 1}]
    cell.close()


def test_a_torn_or_foreign_engine_cell_yields_the_last_good_state_or_nothing(tmp_path: Path) -> None:
    cell = EngineCellWriter(tmp_path, "e")
    cell.set("waiting", 1)
    cell.publish()
    cells = EngineCells(tmp_path)
    (good,) = cells.read()
    cell.publish()
    with cell.path.open("r+b") as file:
        file.seek(256 + 24 + 3)
        file.write(b"\xff")
    assert [state.sequence for state in cells.read()] == [good.sequence]
    cell.close()
    (tmp_path / "engine-x.cell").write_bytes(b"short")
    (tmp_path / "engine-y.cell").write_bytes(b"")
    (tmp_path / "engine-z.cell").write_bytes(b"foreign!" * 5000)
    assert list(cells.read(time.monotonic_ns() + LATER_NS)) == []


def test_a_name_that_could_leave_the_directory_is_refused(tmp_path: Path) -> None:
    for name in ("../x", "a/b", "", "x" * 101):
        with pytest.raises(SnapshotError, match="cannot name a cell"):
            EngineCellWriter(tmp_path, name)


CRASHING_ENGINE = """
import pathlib, sys, time
from zerohop_snapshot import EngineCellWriter
cell = EngineCellWriter(pathlib.Path(sys.argv[1]), "crash")
cell.set("waiting", 3); cell.publish()
print("stepped", flush=True)
sys.stdin.read()
"""


def test_the_cell_of_a_killed_engine_is_ignored_and_its_successor_is_read(tmp_path: Path) -> None:
    engine = subprocess.Popen(
        [sys.executable, "-c", CRASHING_ENGINE, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert engine.stdout is not None
    engine.stdout.readline()
    cells = EngineCells(tmp_path)
    assert [state.fields["waiting"] for state in cells.read()] == [3]
    with pytest.raises(WriterLocked):
        EngineCellWriter(tmp_path, "crash")
    engine.kill()
    engine.communicate()
    assert list(cells.read(time.monotonic_ns() + LATER_NS)) == []
    successor = EngineCellWriter(tmp_path, "crash")
    successor.set("waiting", 7)
    successor.publish()
    assert [state.fields["waiting"] for state in cells.read(time.monotonic_ns() + 2 * LATER_NS)] == [7]
    successor.close()


def test_picks_in_flight_tokens_and_the_log(tmp_path: Path) -> None:
    cell = PickerCell(tmp_path, "w0", endpoint_capacity=8, log_capacity=4)
    cell.start(2, 1, 100, now_ns=10)
    cell.start(2, 1, 50, now_ns=20)
    cell.start(5, 3, 7, now_ns=30)
    view = cell.view()
    assert (view.in_flight(2, 1), view.in_flight(5, 3), view.in_flight(2, 9)) == (2, 1, 0)
    assert (view.picks(2, 1), view.log_head, view.heartbeat_ns) == (2, 3, 30)
    tokens = np.frombuffer(view.memory, "<u8", view.endpoint_capacity, view.tokens_offset)
    assert tokens.tolist() == [0, 0, 150, 0, 0, 7, 0, 0]
    cell.release_tokens(2, 1, 100)
    cell.finish(2, 1, 50)
    assert tokens[2] == 0
    assert view.in_flight(2, 1) == 1
    log = [LOG_ENTRY.unpack_from(view.memory, view.log_offset + 16 * entry) for entry in range(4)]
    assert log == [(10, 2, 100), (20, 2, 50), (30, 5, 7), (0, 0, 0)]
    for moment in (40, 50):
        cell.start(1, 1, 0, moment)
    assert view.log_head == 5
    assert LOG_ENTRY.unpack_from(view.memory, view.log_offset)[0] == 50, "entry 4 lies at 4 % 4"
    cell.close()


def test_counts_never_fall_below_zero_and_a_reused_row_starts_again(tmp_path: Path) -> None:
    cell = PickerCell(tmp_path, "w0", endpoint_capacity=8)
    cell.start(0, 1, 10, 1)
    cell.start(0, 2, 20, 2)
    assert (cell.in_flight(0, 1), cell.in_flight(0, 2)) == (0, 1)
    cell.finish(0, 1, 10)
    assert cell.in_flight(0, 2) == 1, "a late end of the old endpoint's request is not the new one's"
    for _ in range(3):
        cell.finish(0, 2, 20)
    assert cell.in_flight(0, 2) == 0
    view = cell.view()
    assert view.picks(0, 2) == 1
    assert np.frombuffer(view.memory, "<u8", 1, view.tokens_offset)[0] == 0
    cell.start(8, 1, 1, 1)
    cell.finish(-1, 1, 1)
    assert view.log_head == 2, "rows past the capacity are ignored"
    cell.close()


def test_totals_are_counted_by_name(tmp_path: Path) -> None:
    cell = PickerCell(tmp_path, "w0")
    cell.count("picks", 3)
    cell.count("refusals")
    totals = cell.view().totals()
    assert (totals["picks"], totals["refusals"], totals["errors"]) == (3, 1, 0)
    with pytest.raises(KeyError, match="nonsense"):
        cell.count("nonsense")
    cell.close()


WORKER = """
import pathlib, sys, time
from zerohop_snapshot import PickerCell
cell = PickerCell(pathlib.Path(sys.argv[1]), sys.argv[2])
for _ in range(4):
    cell.start(1, 1, 10, time.monotonic_ns())
print("picked", flush=True)
sys.stdin.read()
"""


def test_workers_see_each_others_counts_until_one_dies(tmp_path: Path) -> None:
    own = PickerCell(tmp_path, "w0")
    own.start(1, 1, 10, time.monotonic_ns())
    other = subprocess.Popen(
        [sys.executable, "-c", WORKER, tmp_path, "w1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    other.stdout.readline()
    peers = PeerCells(tmp_path)
    assert peers.in_flight(1, 1) == 5
    other.kill()
    other.communicate()
    eventually(lambda: peers.in_flight(1, 1) == 1, what="the dead worker's count is dropped")
    own.close()


def test_a_writer_in_another_pid_namespace_is_judged_by_its_heartbeat(tmp_path: Path) -> None:
    own = own_identity()
    foreign = Identity(own.boot_id, own.pid_namespace + 1, own.pid, own.start)
    folder = CellFolder(tmp_path, "picker", PeerCell.open)
    now = 10**12
    assert folder.is_alive(foreign, now - HEARTBEAT_BOUND_NS, now)
    assert not folder.is_alive(foreign, now - HEARTBEAT_BOUND_NS - 1, now)
    assert folder.is_alive(own, 0, now), "in the same namespace the process itself is looked up"
    assert not folder.is_alive(Identity(bytes(16), own.pid_namespace, own.pid, own.start), now, now)
    assert not folder.is_alive(Identity(own.boot_id, own.pid_namespace, own.pid, own.start + 1), now, now)

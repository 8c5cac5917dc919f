from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from support.processes import Processes
from support.waiting import eventually
from zerohop_console.main import main
from zerohop_snapshot.layout import DrainReason, Flag, GpuFlag, UnhealthyReason, reasons_word
from zerohop_snapshot.pickercell import PickerCell
from zerohop_snapshot.writer import SnapshotWriter


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SnapshotWriter]:
    made = SnapshotWriter(tmp_path)
    yield made
    made.close()


def add(writer: SnapshotWriter, address: str, cold: dict[str, Any], **values: float) -> int:
    row = writer.add_endpoint(address)
    assert row is not None
    for name, value in values.items():
        writer.endpoints.set(row, name, value)
    cold["endpoints"][row] = {
        "address": address, "name": f"pod-{row}", "generation": writer.generation(row), "models": ["tiny", "alpha"],
    }  # fmt: skip
    return row


def publish(writer: SnapshotWriter, cold: dict[str, Any]) -> None:
    writer.set_cold(msgpack.packb(cold))
    writer.publish()


def shown(shm_dir: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["snapshot", "--shm-dir", str(shm_dir), "--json"]) == 0
    view: dict[str, Any] = json.loads(capsys.readouterr().out)
    return view


def test_json_shows_what_was_published(
    tmp_path: Path, writer: SnapshotWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    cold: dict[str, Any] = {"v": 1, "node": "node-a", "adapters": ["alpha", None, "beta"], "endpoints": {}}
    observed = time.monotonic_ns() - 20_000_000
    add(
        writer, "10.0.0.1:8000", cold, observed_ns=observed, waiting=3, running=7, kv_cache_usage=0.25,
        lora_running_0=0b101, flags=Flag.USED | Flag.PLUGIN,
    )  # fmt: skip
    publish(writer, cold)
    view = shown(tmp_path, capsys)
    assert view["sequence"] == 1
    assert view["node"] == "node-a"
    assert 0 <= view["age_ms"] < 5_000
    (endpoint,) = view["endpoints"]
    assert endpoint["address"] == "10.0.0.1:8000"
    assert endpoint["name"] == "pod-0"
    assert (endpoint["waiting"], endpoint["running"], endpoint["kv_cache_usage"]) == (3, 7, 0.25)
    assert 20 <= endpoint["observed_age_ms"] < 5_000
    assert endpoint["flags"] == ["plugin"]
    assert endpoint["models"] == ["tiny", "alpha"]
    assert endpoint["adapters"] == {"running": ["alpha", "beta"], "waiting": [], "max": None}


def test_what_is_unknown_is_null_and_never_zero(
    tmp_path: Path, writer: SnapshotWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    cold: dict[str, Any] = {"v": 1, "node": "node-a", "endpoints": {}}
    add(writer, "10.0.0.1:8000", cold)
    publish(writer, cold)
    view = shown(tmp_path, capsys)
    (endpoint,) = view["endpoints"]
    for name in ("waiting", "running", "kv_cache_usage", "observed_age_ms", "in_flight", "slowdown"):
        assert endpoint[name] is None, name
    assert view["host"]["cpu_ratio"] is None
    assert view["host"]["observed_age_ms"] is None
    assert view["gpus"] == []


def test_a_zero_is_a_zero(tmp_path: Path, writer: SnapshotWriter, capsys: pytest.CaptureFixture[str]) -> None:
    cold: dict[str, Any] = {"v": 1, "endpoints": {}}
    add(writer, "10.0.0.1:8000", cold, waiting=0, running=0, kv_cache_usage=0)
    publish(writer, cold)
    (endpoint,) = shown(tmp_path, capsys)["endpoints"]
    assert (endpoint["waiting"], endpoint["running"], endpoint["kv_cache_usage"]) == (0, 0, 0)


def test_in_flight_is_the_sum_over_live_workers_of_this_row_s_life(
    tmp_path: Path, writer: SnapshotWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    cold: dict[str, Any] = {"v": 1, "endpoints": {}}
    row = add(writer, "10.0.0.1:8000", cold)
    publish(writer, cold)
    cells = [PickerCell(tmp_path, f"worker-{index}") for index in range(2)]
    try:
        for cell, count in zip(cells, (2, 3), strict=True):
            for _ in range(count):
                cell.start(row, writer.generation(row), 10, time.monotonic_ns())
        cells[0].start(row + 1, 9, 10, time.monotonic_ns())
        assert shown(tmp_path, capsys)["endpoints"][0]["in_flight"] == 5
        cells[1].finish(row, writer.generation(row), 10)
        assert shown(tmp_path, capsys)["endpoints"][0]["in_flight"] == 4
    finally:
        for cell in cells:
            cell.close()


def test_flags_come_with_their_reasons(
    tmp_path: Path, writer: SnapshotWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    cold: dict[str, Any] = {"v": 1, "endpoints": {}}
    add(
        writer, "10.0.0.1:8000", cold, flags=Flag.USED | Flag.DRAIN | Flag.UNHEALTHY,
        reasons=reasons_word(DrainReason.XID, UnhealthyReason.REFUSED),
    )  # fmt: skip
    publish(writer, cold)
    (endpoint,) = shown(tmp_path, capsys)["endpoints"]
    assert endpoint["flags"] == ["drain", "unhealthy"]
    assert (endpoint["reasons"]["drain"], endpoint["reasons"]["unhealthy"]) == ("xid", "refused")
    assert main(["snapshot", "--shm-dir", str(tmp_path)]) == 0
    assert "xid" in capsys.readouterr().out


def test_a_row_of_a_new_owner_does_not_carry_the_old_name(
    tmp_path: Path, writer: SnapshotWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    cold: dict[str, Any] = {"v": 1, "endpoints": {}}
    add(writer, "10.0.0.1:8000", cold)
    publish(writer, cold)
    writer.remove_endpoint("10.0.0.1:8000")
    writer.add_endpoint("10.0.0.2:8000")
    writer.publish()
    (endpoint,) = shown(tmp_path, capsys)["endpoints"]
    assert endpoint["address"] is None


def test_gpus_and_host_are_shown(tmp_path: Path, writer: SnapshotWriter, capsys: pytest.CaptureFixture[str]) -> None:
    writer.gpus.set(0, "flags", GpuFlag.USED | GpuFlag.THROTTLED)
    writer.gpus.set(0, "utilization", 0.5)
    writer.gpus.set(0, "xid_last", 79)
    writer.host.set(0, "cpu_ratio", 0.125)
    writer.host.set(0, "observed_ns", time.monotonic_ns())
    publish(writer, {"v": 1, "endpoints": {}, "gpus": [{"uuid": "GPU-1", "name": "H100", "index": 0}]})
    view = shown(tmp_path, capsys)
    (gpu,) = view["gpus"]
    assert (gpu["uuid"], gpu["utilization"], gpu["xid_last"], gpu["flags"]) == ("GPU-1", 0.5, 79, ["throttled"])
    assert gpu["power_watts"] is None
    assert view["host"]["cpu_ratio"] == 0.125
    assert main(["snapshot", "--shm-dir", str(tmp_path)]) == 0
    assert "H100" in capsys.readouterr().out


def damage_absent(path: Path) -> None:
    path.unlink(missing_ok=True)


def damage_short(path: Path) -> None:
    raw = path.read_bytes()
    path.unlink()
    path.write_bytes(raw[: len(raw) // 2])


def damage_foreign(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"# not a snapshot\n" * 1000)


def damage_version(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[12:16] = struct.pack("<I", 999)
    path.unlink()
    path.write_bytes(raw)


def damage_bits(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    for offset in range(512, len(raw), 97):
        raw[offset] ^= 0x40
    path.unlink()
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (damage_absent, "does not exist"),
        (damage_short, "fewer than its header says"),
        (damage_foreign, "is not a zerohop snapshot"),
        (damage_version, "layout version 999"),
        (damage_bits, "checksum"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence_and_exit_code_1(
    damage: Any, word: str, tmp_path: Path, writer: SnapshotWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(writer, {"v": 1, "endpoints": {}})
    damage(tmp_path / "node.snap")
    assert main(["snapshot", "--shm-dir", str(tmp_path)]) == 1
    complaint = capsys.readouterr().err
    assert word in complaint
    assert str(tmp_path) in complaint
    assert complaint.count("\n") == 1


def test_an_agent_that_has_not_published_yet_is_said_so(
    tmp_path: Path, writer: SnapshotWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["snapshot", "--shm-dir", str(tmp_path)]) == 1
    assert "nothing was published yet" in capsys.readouterr().err


def test_watch_goes_on_and_ends_with_ctrl_c(run: Processes, tmp_path: Path, writer: SnapshotWriter) -> None:
    publish(writer, {"v": 1, "node": "node-a", "endpoints": {}})
    child = run.zerohop("snapshot", "--shm-dir", tmp_path, "--json", "--watch", "--interval", "20ms", wait=False)

    def sequences() -> set[int]:
        return {json.loads(line)["sequence"] for line in child.log.splitlines()}

    eventually(lambda: sequences() == {1}, what="the first sequence is shown")
    writer.publish()
    eventually(lambda: sequences() == {1, 2}, what="the second sequence is shown")
    child.signal(2)
    assert child.wait() == 0
    assert "Traceback" not in child.log


def test_no_nan_reaches_the_json(tmp_path: Path, writer: SnapshotWriter, capsys: pytest.CaptureFixture[str]) -> None:
    cold: dict[str, Any] = {"v": 1, "endpoints": {}}
    add(writer, "10.0.0.1:8000", cold, waiting=math.inf, slowdown=math.nan)
    publish(writer, cold)
    assert main(["snapshot", "--shm-dir", str(tmp_path), "--json"]) == 0
    assert "NaN" not in (text := capsys.readouterr().out)
    assert "Infinity" not in text


def test_endpoints_that_differ_in_their_last_digit_look_different_on_80_columns(
    tmp_path: Path, writer: SnapshotWriter, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cold: dict[str, Any] = {"v": 1, "node": "n", "adapters": [], "endpoints": {}}
    for port in (18_101, 18_102):
        add(writer, f"10.0.0.101:{port}", cold, waiting=100, running=128, kv_cache_usage=0.5, observed_ns=1)
    publish(writer, cold)
    assert main(["snapshot", "--shm-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for word in ("10.0.0.101:18101", "10.0.0.101:18102", "pod-0", "pod-1", "50%"):
        assert word in shown

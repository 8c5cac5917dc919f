"""The session table: sticky until it expires, shared, bounded, never wrong."""

from __future__ import annotations

from pathlib import Path

from zerohop_snapshot.sessions import FILE_NAME, SessionTable


def test_a_session_is_found_until_it_expires_also_by_another_worker(tmp_path: Path) -> None:
    table, other = SessionTable(tmp_path), SessionTable(tmp_path)
    table.put(b"alice", 3, 7, expires_ns=100)
    assert other.get(b"alice", now_ns=99) == (3, 7)
    assert other.get(b"alice", now_ns=100) is None
    assert other.get(b"bob", now_ns=1) is None
    other.put(b"alice", 4, 1, expires_ns=500)
    assert table.get(b"alice", now_ns=200) == (4, 1)


def test_a_restart_keeps_sessions_and_another_size_forgets_them(tmp_path: Path) -> None:
    SessionTable(tmp_path, slots=64).put(b"a", 1, 1, expires_ns=100)
    assert SessionTable(tmp_path, slots=64).get(b"a", now_ns=1) == (1, 1)
    assert SessionTable(tmp_path, slots=128).get(b"a", now_ns=1) is None


def test_a_full_set_gives_up_the_session_that_expires_first(tmp_path: Path) -> None:
    table = SessionTable(tmp_path, slots=8)
    for number in range(9):
        table.put(b"%d" % number, number, 1, expires_ns=1000 + number)
    assert table.get(b"0", now_ns=1) is None
    assert [table.get(b"%d" % number, now_ns=1) for number in range(1, 9)] == [(number, 1) for number in range(1, 9)]


def test_a_torn_entry_is_not_found_rather_than_wrong(tmp_path: Path) -> None:
    table = SessionTable(tmp_path, slots=8)
    table.put(b"a", 1, 1, expires_ns=100)
    path = tmp_path / FILE_NAME
    raw = path.read_bytes()
    at = raw.index((1).to_bytes(4, "little") * 2, 256)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\x02")
    assert table.get(b"a", now_ns=1) is None


def test_keys_are_not_stored_in_the_file(tmp_path: Path) -> None:
    SessionTable(tmp_path, slots=8).put(b"secret-session-key", 1, 1, expires_ns=2**62)
    assert b"secret-session-key" not in (tmp_path / FILE_NAME).read_bytes()

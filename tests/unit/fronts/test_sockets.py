from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from zerohop_picker.fronts.sockets import PathLock, SocketAccess, bind_tcp, bind_unix
from zerohop_process.address import Listen
from zerohop_process.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "picker.sock")


def test_the_socket_appears_with_its_mode_and_leaves_with_its_owner(path: str) -> None:
    lock = PathLock(path)
    with bind_unix(lock, SocketAccess(mode=0o666, group=str(os.getgid()))):
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o666
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
    lock.release()
    assert list(Path(path).parent.iterdir()) == []


def test_a_second_owner_is_refused_and_the_first_keeps_serving(path: str) -> None:
    lock = PathLock(path)
    with bind_unix(lock, SocketAccess()):
        with pytest.raises(ConfigError, match=rf"in use by another picker \(process {os.getpid()}\)"):
            PathLock(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
    lock.release()


def test_what_a_crash_left_is_taken_over(path: str) -> None:
    code = f"""
import os
from zerohop_picker.fronts.sockets import *
bind_unix(PathLock({path!r}), SocketAccess())
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert Path(path).is_socket()
    lock = PathLock(path)
    with bind_unix(lock, SocketAccess()), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    lock.release()


def test_a_socket_of_someone_else_who_lives_is_left_alone(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        lock = PathLock(path)
        with pytest.raises(ConfigError, match="another process serves this socket"):
            bind_unix(lock, SocketAccess())
        lock.release()
        assert Path(path).is_socket()


def test_a_file_that_is_no_socket_is_left_alone(path: str) -> None:
    Path(path).write_text("precious")
    lock = PathLock(path)
    with pytest.raises(ConfigError, match="is not a socket"):
        bind_unix(lock, SocketAccess())
    assert Path(path).read_text() == "precious"


def test_a_successor_keeps_its_socket_when_the_predecessor_leaves(path: str) -> None:
    first = PathLock(path)
    bind_unix(first, SocketAccess()).close()
    Path(path).unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        first.release()
        assert Path(path).is_socket()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: PathLock(f"{path}/no/where.sock"), "does not exist; create it"),
        (lambda path: bind_unix(PathLock(path), SocketAccess(group="no-such-group")), "no such group"),
        (lambda path: bind_tcp(Listen.parse("203.0.113.1:9002"), reuse_port=False), "cannot assign requested address"),
        (lambda path: bind_tcp(Listen.parse("nowhere.invalid:9002"), reuse_port=False), "cannot resolve"),
    ],
)
def test_mistakes_are_said_plainly(path: str, make: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make(path)  # type: ignore[operator]

"""Listening sockets: a Unix socket has one owner at a time, appears with its final mode, and leaves with its owner."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerohop_process.address import Listen
from zerohop_process.errors import ConfigError, reason

BACKLOG = 1_024


@dataclass(frozen=True, slots=True)
class SocketAccess:
    """Who may connect to a Unix socket: permission bits, and a group by name or number (None: the process's own).

    Connecting needs write permission on the socket; Envoy beside Istio runs as user and group 1337.
    """

    mode: int = 0o660
    group: str | None = None


class PathLock:
    """Holds a socket path for this process, by a lock on the file `PATH.lock` that the kernel drops when we die.

    Raises: ConfigError when another process holds it, or the folder cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock_path = f"{path}.lock"
        self._fd = self._locked()
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"{os.getpid()}\n".encode())
        self._published: tuple[int, int] | None = None

    def clear_stale(self) -> None:
        """Remove what a dead owner left at the path. Raises: ConfigError when someone answers there."""
        try:
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise ConfigError(f"--listen unix:{self.path}: the path exists and is not a socket; choose another")
        except FileNotFoundError:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(self.path)
            except (ConnectionRefusedError, FileNotFoundError):
                with contextlib.suppress(FileNotFoundError):
                    Path(self.path).unlink()
                return
            except OSError as error:
                raise ConfigError(f"--listen unix:{self.path}: {reason(error)}") from None
        raise ConfigError(
            f"--listen unix:{self.path}: another process serves this socket; stop it or choose another path"
        )

    def publish(self, temporary: str, access: SocketAccess) -> None:
        """Give the socket bound at `temporary` its mode and group, and move it to the path in one step.

        Raises: ConfigError.
        """
        try:
            os.chmod(temporary, access.mode)  # noqa: PTH101
            if access.group is not None:
                os.chown(temporary, -1, _group_id(access.group))
            os.rename(temporary, self.path)  # noqa: PTH104
            self._published = _identity(self.path)
        except OSError as error:
            raise ConfigError(f"--listen unix:{self.path}: cannot set up the socket: {reason(error)}") from None

    def temporary(self) -> str:
        """Return a name beside the path to bind first, free of a socket."""
        # Short, because a socket's path has little room, and ours alone, because we hold the lock.
        name = f"{self.path}~"
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        return name

    def release(self) -> None:
        """Remove our socket and give the path up."""
        with contextlib.suppress(OSError):
            Path(f"{self.path}~").unlink()
        with contextlib.suppress(OSError):
            if self._published is not None and _identity(self.path) == self._published:
                Path(self.path).unlink()
        with contextlib.suppress(OSError):
            Path(self._lock_path).unlink()
        os.close(self._fd)

    def _locked(self) -> int:
        while True:
            try:
                fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                folder = Path(self.path).parent
                raise ConfigError(
                    f"--listen unix:{self.path}: the folder {folder} does not exist; create it or choose another path"
                ) from None
            except OSError as error:
                raise ConfigError(f"--listen unix:{self.path}: cannot create the lock file: {reason(error)}") from None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                owner = os.read(fd, 32).decode(errors="replace").strip()
                os.close(fd)
                raise ConfigError(
                    f"--listen unix:{self.path}: in use by another picker (process {owner or 'unknown'}); "
                    "stop it or choose another path"
                ) from None
            # Its last owner may have removed the file between our open and our lock: then this lock guards nothing.
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self._lock_path).st_ino == os.fstat(fd).st_ino:  # noqa: PTH116
                    return fd
            os.close(fd)


def bind_unix(lock: PathLock, access: SocketAccess) -> socket.socket:
    """Return a socket that listens at the lock's path. Raises: ConfigError."""
    lock.clear_stale()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    temporary = lock.temporary()
    try:
        sock.bind(temporary)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"--listen unix:{lock.path}: {reason(error)}") from None
    try:
        lock.publish(temporary, access)
    except ConfigError:
        sock.close()
        raise
    return sock


def bind_tcp(listen: Listen, *, reuse_port: bool, flag: str = "--listen") -> socket.socket:
    """Return a socket that listens at the TCP address. Raises: ConfigError."""
    address = listen.address
    assert address is not None  # noqa: S101
    try:
        family, _, _, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"{flag} {listen}: cannot resolve the host: {reason(error)}") from None
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and address.host == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(where)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"{flag} {listen}: {reason(error)}") from None
    return sock


@contextlib.contextmanager
def masked(mask: int) -> Iterator[None]:
    """Hold the process's file mode mask at `mask`."""
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


def _identity(path: str) -> tuple[int, int]:
    """Return what tells our socket from a successor's at the same path; an inode number alone may be used again."""
    status = os.lstat(path)
    return status.st_ino, status.st_mtime_ns


def _group_id(group: str) -> int:
    if group.isdecimal():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(
            f"--socket-group {group}: no such group here; give a name from /etc/group or a number"
        ) from None

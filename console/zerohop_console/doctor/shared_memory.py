"""The shm directory: there, on memory, readable by this user and not writable by those who only read."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from zerohop_console.doctor.finding import Finding, fail, ok, skip, warn
from zerohop_console.snapshot_view import used_rows
from zerohop_snapshot.reader import SnapshotReader

_CHECK = "shm"
_NEEDED_BYTES = 64 * 1024 * 1024
_STALE_S = 5.0
#: Types that a container may read; anything else is refused by the default policy of container-selinux.
_CONTAINER_TYPES = ("container_file_t", "container_ro_file_t", "svirt_sandbox_file_t")
_TMPFS_MAGIC = "tmpfs"


def check(
    shm_dir: Path, *, mounts: Path = Path("/proc/mounts"), selinux: Path = Path("/sys/fs/selinux/enforce")
) -> Iterator[Finding]:
    """Findings about the directory and the snapshot in it."""
    try:
        status = shm_dir.stat()
    except FileNotFoundError:
        yield fail(
            _CHECK,
            f"{shm_dir} does not exist",
            "start the agent with this --shm-dir; in a pod, mount the volume that the agent writes to",
        )
        return
    except PermissionError:
        yield fail(_CHECK, f"{shm_dir} cannot be reached by this user", f"add the user to the group of {shm_dir}")
        return
    if not stat.S_ISDIR(status.st_mode):
        yield fail(_CHECK, f"{shm_dir} is not a directory", "name the directory that the agent's --shm-dir names")
        return
    yield from _directory(shm_dir, status)
    yield from _memory(shm_dir, mounts)
    yield from _label(shm_dir, selinux)
    yield from _snapshot(shm_dir)


def _directory(shm_dir: Path, status: os.stat_result) -> Iterator[Finding]:
    mode = stat.S_IMODE(status.st_mode)
    shown = f"{shm_dir} has mode {mode:04o}, owner {status.st_uid}, group {status.st_gid}"
    if not os.access(shm_dir, os.R_OK | os.X_OK):
        yield fail(
            _CHECK, f"{shown}: this user may not read it", f"run with group {status.st_gid} (supplementalGroups)"
        )
    elif mode & 0o002 and not mode & 0o1000:
        yield fail(
            _CHECK,
            f"{shown}: anyone may replace its files",
            f"chmod o-w {shm_dir}, or set the sticky bit (the DaemonSet makes it 3770)",
        )
    elif mode & 0o020 and not mode & 0o1000:
        yield warn(
            _CHECK,
            f"{shown}: its group may replace the agent's files",
            f"chmod +t {shm_dir}: with the sticky bit pickers can add files and not replace others'",
        )
    else:
        yield ok(_CHECK, shown)


def _memory(shm_dir: Path, mounts: Path) -> Iterator[Finding]:
    kind = _filesystem(shm_dir, mounts)
    if kind not in (_TMPFS_MAGIC, "ramfs", None):
        yield warn(
            _CHECK,
            f"{shm_dir} is on {kind}, which writes to a disk",
            "use a tmpfs: /dev/shm, /run, or an emptyDir with medium Memory",
        )
    space = os.statvfs(shm_dir)
    free = space.f_bavail * space.f_frsize
    if free < _NEEDED_BYTES:
        yield warn(
            _CHECK,
            f"{shm_dir} has {free // 2**20} MiB free",
            "give it 64 MiB or more (sizeLimit of the emptyDir, or --shm-size of the container)",
        )


def _filesystem(path: Path, mounts: Path) -> str | None:
    """The type of the file system that `path` is on; None when it cannot be told."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    resolved = path.resolve()
    best: tuple[int, str] | None = None
    for line in lines:
        _, where, kind, *_ = line.split(" ")
        point = Path(where.replace("\\040", " "))
        if resolved.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), kind)
    return best[1] if best else None


def _label(shm_dir: Path, selinux: Path) -> Iterator[Finding]:
    try:
        enforcing = selinux.read_text().strip() == "1"
    except OSError:
        return
    try:
        label = os.getxattr(shm_dir, "security.selinux").rstrip(b"\0").decode()
    except OSError:
        return
    kind = label.split(":")[2] if label.count(":") >= 2 else label
    if kind in _CONTAINER_TYPES:
        yield ok(_CHECK, f"SELinux label {label}")
        return
    message = f"SELinux label {label}: containers may not read {kind}"
    remedy = f"chcon -R -t container_file_t -l s0 {shm_dir} (or a semanage fcontext rule, so that it lasts)"
    yield fail(_CHECK, message, remedy) if enforcing else warn(_CHECK, f"{message} once SELinux enforces", remedy)


def _snapshot(shm_dir: Path) -> Iterator[Finding]:
    reader = SnapshotReader(shm_dir)
    try:
        snapshot = reader.read()
        if snapshot is None:
            sentence, _, remedy = reader.detail.rpartition("; ")
            yield fail(_CHECK, sentence or reader.detail, remedy or "start the agent with this --shm-dir")
            return
        age_s = (time.monotonic_ns() - snapshot.published_ns) / 1e9
        rows = used_rows(snapshot)
        said = f"snapshot {snapshot.sequence} with {len(rows)} endpoints, {age_s * 1000:.0f} ms old"
        if age_s > _STALE_S:
            yield fail(_CHECK, said, "the agent is gone or hangs: look at its log and its /healthz")
        else:
            yield ok(_CHECK, said)
        if snapshot.refusals:
            yield fail(
                _CHECK,
                f"{snapshot.refusals} endpoints did not fit",
                "start the agent with a larger --endpoint-capacity",
            )
        if not rows:
            yield skip(_CHECK, "no endpoint is known to the agent")
        yield from _intervals(snapshot, rows)
    finally:
        reader.close()


def _intervals(snapshot: object, rows: list[int]) -> Iterator[Finding]:
    """Values that are older than their own interval explains."""
    column = snapshot.column  # type: ignore[attr-defined]
    intervals, observed = column("scrape_interval_s"), column("observed_ns")
    now_ns = time.monotonic_ns()
    late = [
        row
        for row in rows
        if observed[row] and intervals[row] > 0 and (now_ns - observed[row]) / 1e9 > 5 * intervals[row] + 0.2
    ]
    if late:
        yield warn(
            "intervals",
            f"{len(late)} of {len(rows)} endpoints have values older than five of their scrape intervals",
            "zerohop snapshot shows which; a longer --scrape-interval or a faster /metrics helps",
        )
    elif rows:
        yield ok("intervals", f"values of all {len(rows)} endpoints are as old as their scrape intervals say")

"""Follows a file that people or Kubernetes replace while we run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiofiles

from zerohop_process import log
from zerohop_process.errors import reason

_logger = log.get("follow")
# A file written twice within one tick of the kernel's clock (up to 10 ms) can change without a new mtime; so a file
# that was written less than this long ago is read again on the next look.
_YOUNG_NS = 1_000_000_000

Stamp = tuple[int, int, int, int]


async def follow_file(path: Path | str, interval_s: float = 0.25) -> AsyncIterator[str | None]:
    """Yield the content of ``path`` at the start, and again each time it has changed.

    ``None`` means that there is nothing to read now (absent, a directory, no permission); the reason is logged once
    per change, and following goes on. The path is resolved anew on each look, so a swapped symlink (a Kubernetes
    mount) is seen. Bytes that are not UTF-8 come through as surrogates, which the YAML reader then refuses by
    position. Runs until its caller stops it.
    """
    path = Path(path)
    reasons = log.OncePerChange()
    last: str | None = None
    first = True
    seen: Stamp | None = None
    while True:
        stamp, text, why = seen, last, None
        try:
            stamp = stamp_of(path)
            if stamp != seen or first or _is_young(stamp):
                async with aiofiles.open(path, encoding="utf-8", errors="surrogateescape") as file:
                    text = await file.read()
        except OSError as error:
            stamp, text, why = None, None, reason(error, path)
        if reasons.changed(path, why) and why is not None:
            log.event(_logger, "warning", "cannot read the file", reason=why)
        seen = stamp
        if first or text != last:
            first, last = False, text
            yield text
        await asyncio.sleep(interval_s)


def stamp_of(path: Path) -> Stamp:
    """Return what changes when a file is edited or replaced: device, inode, mtime (ns), size (bytes).

    Raises: OSError.
    """
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _is_young(stamp: Stamp) -> bool:
    return abs(time.time_ns() - stamp[2]) < _YOUNG_NS

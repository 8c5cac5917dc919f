"""What cleans up after a run that was killed with SIGKILL, or lost its terminal, and so could not do it itself.

The kernel ends our children when we die, but not what they have started, nor our directory. A shell of 1 MB waits for
the end of a pipe that only we hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from pathlib import Path
from typing import IO

_SHELL = "/bin/sh"
# Lines are process groups, then `over` if all went well; without that it has to do the work.
_SCRIPT = """
trap '' HUP INT TERM
groups=
while read -r word; do
    [ "$word" = over ] && exit 0
    groups="$groups $word"
done
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
rm -rf -- "$0"
"""


class Keeper:
    """Holds a directory, and the process groups that it was told of. Raises: OSError when there is no shell."""

    def __init__(self, folder: Path) -> None:
        self._shell = subprocess.Popen(
            [_SHELL, "-c", _SCRIPT, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in our terminal is for us alone
            bufsize=0,
        )
        assert self._shell.stdin is not None  # noqa: S101
        self._pipe: IO[bytes] = self._shell.stdin

    def tell(self, group: int) -> None:
        """Name a process group that must not outlive us."""
        with contextlib.suppress(OSError):
            self._pipe.write(b"%d\n" % group)

    async def close(self) -> None:
        """Say that everything is cleaned up already."""
        with contextlib.suppress(OSError):
            self._pipe.write(b"over\n")
            self._pipe.close()
        await asyncio.to_thread(self._shell.wait)

"""`zerohop epp`: an agent and a picker in one container, started by the flags of llm-d-router or GIE's picker.

With it the image of an existing picker's Deployment can be swapped for ours: the flags stay, the agent finds the pool
through the API server with the permissions that such a picker has, and the picker serves on the same ports.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from zerohop_picker import compat
from zerohop_process import log
from zerohop_process.lifecycle import StopSignal, die_with_parent
from zerohop_process.lifecycle import run as run_loop

_logger = log.get("epp")
#: The picker drains by itself; this is for one that does not.
_KILL_AFTER_S = 60.0


def prepare(words: Sequence[str]) -> list[str]:
    """The words as they are, protected from our own parser; help stays help."""
    return list(words) if words and words[0] in ("-h", "--help") else ["--", *words]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Takes any words; `compat` reads them."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(len(flag.name) for flag in compat.FLAGS) + 4
    listing = "\n".join(f"  --{flag.name:{width}}{flag.ours}" for flag in compat.FLAGS)
    parser.epilog = f"flags, and what becomes of each (any flag of zerohop picker may stand beside them):\n{listing}"
    parser.add_argument("words", nargs="*", metavar="FLAG", help="flags of llm-d-router or of GIE's picker")


def run(args: argparse.Namespace) -> int:
    """Runs both until one ends or a signal comes; returns the exit code. Raises: ConfigError."""
    translation = compat.translate(args.words)
    json_logs = "--log-format=json" in translation.picker
    log.configure("json" if json_logs else "text", "epp")
    for note in translation.notes:
        log.event(_logger, "warning", note)
    shared = _option(translation.picker, "--shm-dir") or "/dev/shm/zerohop"  # noqa: S108
    agent = [*translation.agent, f"--shm-dir={shared}", "--gpu=off", "--metrics-address=off"]
    return run_loop(_both(agent, translation.picker), uvloop=False)


def _option(words: Sequence[str], flag: str) -> str | None:
    """The value of a flag among `words`, in either form."""
    for position, word in enumerate(words):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag and position + 1 < len(words):
            return words[position + 1]
    return None


async def _both(agent_words: Sequence[str], picker_words: Sequence[str]) -> int:
    stop = StopSignal()
    agent = await _start("agent", agent_words)
    picker = await _start("picker", picker_words)
    ended = {name: asyncio.create_task(child.wait()) for name, child in (("agent", agent), ("picker", picker))}
    asked = asyncio.create_task(stop.wait())
    await asyncio.wait([asked, *ended.values()], return_when=asyncio.FIRST_COMPLETED)
    code = 0
    for name, task in ended.items():
        if task.done() and not asked.done():
            code = task.result() or 1
            log.event(_logger, "error", f"the {name} ended by itself", code=task.result())
    # The picker first: it goes on with the snapshot while its streams end.
    for child, task in ((picker, ended["picker"]), (agent, ended["agent"])):
        if not task.done():
            child.send_signal(signal.SIGTERM)
            await asyncio.wait([task], timeout=_KILL_AFTER_S)
        if not task.done():
            child.kill()
            await task
    asked.cancel()
    return code if code >= 0 else 128 - code


async def _start(name: str, words: Sequence[str]) -> asyncio.subprocess.Process:
    parent = os.getpid()
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "zerohop_console.main",
        name,
        *words,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM, parent),
    )

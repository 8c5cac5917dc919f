from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from support.processes import Process, Processes
from support.waiting import eventually

SERVER = """
import sys
from zerohop_process import lifecycle, log
from zerohop_process.errors import ConfigError

async def main():
    stop = lifecycle.StopSignal()
    lifecycle.ready("test", address="127.0.0.1:1")
    await stop.wait()
    print("cleaning up", flush=True)
    while HANG: await __import__("asyncio").sleep(60)
    return 0

HANG = "hang" in sys.argv
log.configure("json" if "json" in sys.argv else "text", "test")
sys.exit(lifecycle.guarded("test", lambda: lifecycle.run(main(), uvloop="uvloop" in sys.argv)))
"""


def server(run: Processes, *words: str) -> Process:
    return run.start(sys.executable, "-c", SERVER, *words, wait=True)


def test_ready_is_a_line_of_its_own(run: Processes) -> None:
    child = server(run)
    assert "ready" in child.log.splitlines()
    assert "serving address=127.0.0.1:1" in child.log


def test_ready_is_json_when_logs_are(run: Processes) -> None:
    child = server(run, "json")
    assert [json.loads(line) for line in child.log.splitlines()] == [
        {"message": "ready", "program": "test", "address": "127.0.0.1:1"}
    ]


def test_sigterm_and_sigint_end_it_cleanly(run: Processes) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        child = server(run, "uvloop")
        child.signal(number)
        assert child.wait() == 0
        assert "cleaning up" in child.log


def test_the_second_signal_ends_it_at_once(run: Processes) -> None:
    child = server(run, "hang")
    child.signal(signal.SIGTERM)
    child.wait_for("cleaning up")
    child.signal(signal.SIGTERM)
    assert child.wait() == 128 + signal.SIGTERM


def test_a_wrong_configuration_is_one_line_and_exit_code_2(run: Processes) -> None:
    child = run.start(
        sys.executable,
        "-c",
        "import sys; from zerohop_process import lifecycle, strict\n"
        "sys.exit(lifecycle.guarded('agent', lambda: strict.load_yaml('a: [', 'x.yaml').line))",
    )
    assert child.wait() == 2
    assert child.log == (
        "zerohop agent: error: x.yaml:1: not valid YAML: expected the node content, but found '<stream end>'"
    )


def test_a_reader_that_left_is_no_traceback(tmp_path: Path) -> None:
    script = tmp_path / "talk.py"
    script.write_text(
        "import sys\nfrom zerohop_process import lifecycle\n"
        "def talk():\n    for _ in range(100000): print('x' * 100)\n    return 0\n"
        "sys.exit(lifecycle.guarded('snapshot', talk))"
    )
    with_pipe = Process(["bash", "-c", f"{sys.executable} {script} | head -1; echo ${{PIPESTATUS[0]}}"])
    try:
        assert with_pipe.wait() == 0
        assert with_pipe.log.splitlines()[1:] == ["141"]
    finally:
        with_pipe.end()


def test_a_child_does_not_outlive_its_parent(run: Processes) -> None:
    child = (
        "import os, sys, time; from zerohop_process import lifecycle; lifecycle.die_with_parent(9, int(sys.argv[1]))"
    )
    parent = run.start(
        sys.executable,
        "-c",
        "import os, subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-c', {child + '; print(os.getpid(), flush=True); time.sleep(60)'!r},"
        " str(os.getpid())])\np.wait()",
    )
    pid = int(parent.wait_for(str.isdigit))
    parent.kill()
    eventually(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), what="the child has ended")


def test_a_child_whose_parent_is_already_gone_ends(run: Processes) -> None:
    child = run.start(
        sys.executable,
        "-c",
        "from zerohop_process import lifecycle\n"
        f"lifecycle.die_with_parent(parent_pid={os.getpid() + 1})\nprint('alive')",
    )
    assert child.wait() == 0
    assert child.log == ""


def _is_zombie(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True

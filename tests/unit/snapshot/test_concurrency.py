"""Writers and readers in processes of their own: no torn copy is ever returned, and kill -9 loses nothing published."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from support.waiting import eventually
from zerohop_snapshot import SnapshotReader, SnapshotWriter

# Every value of a publish is the same number, in hot columns, node block and cold map: a mixture is a torn copy.
WRITER = """
import pathlib, sys
from zerohop_snapshot import SnapshotWriter
writer = SnapshotWriter(pathlib.Path(sys.argv[1]), endpoint_capacity=64)
rows = [writer.add_endpoint(str(number)) for number in range(64)]
value = writer.sequence
print("writing", flush=True)
while True:
    value = (value + 1) % 1_000_000
    for name in ("waiting", "running", "prompt_tokens", "observed_ns", "reasons"):
        column = writer.endpoints.column(name)
        for row in rows:
            column[row] = value
    writer.gpus.set(3, "power_watts", value)
    writer.host.set(0, "load1", value)
    if value % 7 == 0:
        writer.set_cold(str(value).encode() * 50)
    writer.publish()
"""

READER = """
import json, pathlib, sys, time
from zerohop_snapshot import SnapshotReader
reader = SnapshotReader(pathlib.Path(sys.argv[1]))
end, copies, torn, last, backwards = time.monotonic() + float(sys.argv[2]), 0, 0, -1, 0
while time.monotonic() < end:
    snapshot = reader.read()
    if snapshot is None or snapshot.sequence == last:
        continue
    backwards += snapshot.sequence < last
    last, copies = snapshot.sequence, copies + 1
    seen = {snapshot.gpu("power_watts")[3], snapshot.host("load1")}
    for name in ("waiting", "running", "prompt_tokens", "observed_ns", "reasons"):
        seen.update(snapshot.column(name).tolist())
    cold = snapshot.cold.decode()
    torn += len(seen) != 1 or (cold and cold != cold[: len(cold) // 50] * 50)
print(json.dumps({"copies": copies, "torn": torn, "backwards": backwards, "retries": reader.torn}))
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True, bufsize=1
    )


def is_past(reader: SnapshotReader, sequence: int) -> bool:
    """Whether the file holds a newer sequence (a clock far ahead makes the reader look at the path again)."""
    reader.read(now_ns=time.monotonic_ns() * 2)
    return reader.sequence_word() > sequence


def stop(process: subprocess.Popen[str], how: signal.Signals = signal.SIGKILL) -> None:
    process.send_signal(how)
    if process.stdout is not None and not process.stdout.closed:
        process.communicate()


def test_two_readers_beside_a_writer_at_full_speed_never_see_a_torn_copy(tmp_path: Path) -> None:
    children = [start(WRITER, tmp_path)]
    try:
        stdout = children[0].stdout
        assert stdout is not None
        assert stdout.readline() == "writing\n"
        children += [start(READER, tmp_path, 5) for _ in range(2)]
        results = [json.loads(reader.communicate(timeout=50)[0]) for reader in children[1:]]
    finally:
        for child in children:
            stop(child)
    for result in results:
        assert (result["torn"], result["backwards"]) == (0, 0)
        # Tens of thousands on a quiet machine, hundreds where ten processes want each core.
        assert result["copies"] > 20


@pytest.mark.timeout(120)
def test_kill_minus_nine_of_the_writer_at_50_random_moments(tmp_path: Path) -> None:
    random_moments = random.Random(11)
    reader = SnapshotReader(tmp_path)
    sequence = 0
    for _ in range(50):
        writer = start(WRITER, tmp_path)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        eventually(partial(is_past, reader, sequence), what="the writer publishes")
        # a moment within a publish, chosen by spinning: no event marks it, that is the point
        end = time.perf_counter_ns() + random_moments.randrange(400_000)
        while time.perf_counter_ns() < end:
            pass
        stop(writer)
        snapshot = reader.read()
        assert snapshot is not None, "the last good copy survives its writer"
        assert snapshot.sequence > sequence, "a restarted writer goes on with the sequence"
        values = {value for name in ("waiting", "running", "prompt_tokens") for value in snapshot.column(name).tolist()}
        assert len(values) == 1
        sequence = snapshot.sequence
    last = SnapshotWriter(tmp_path, endpoint_capacity=64)
    assert last.sequence >= sequence
    assert last.add_endpoint("63") == 63
    last.close()

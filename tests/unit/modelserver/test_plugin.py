"""Engine cells in a real directory, read back per endpoint."""

from __future__ import annotations

import itertools
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.processes import Processes
from support.waiting import eventually
from zerohop_agent.modelserver import plugin
from zerohop_agent.modelserver.plugin import ServerCells
from zerohop_agent.signals import Signals
from zerohop_process.address import Address
from zerohop_snapshot import EngineCellWriter
from zerohop_snapshot.enginecell import ENGINE_FIELDS, EngineState

HERE = Address("127.0.0.1", 8000)
# Each look is past the time between two listings of the directory.
_FUTURE = itertools.count()
NETNS = Path("/proc/self/ns/net").stat().st_ino


@pytest.fixture
def cells(tmp_path: Path) -> Iterator[dict[str, EngineCellWriter]]:
    opened: dict[str, EngineCellWriter] = {}
    yield opened
    for cell in opened.values():
        cell.close()


def write(
    cells: dict[str, EngineCellWriter],
    tmp_path: Path,
    name: str,
    *,
    now_ns: int = 0,
    text: dict[str, Any] | None = None,
    **fields: float,
) -> None:
    cell = cells.get(name) or cells.setdefault(name, EngineCellWriter(tmp_path, name))
    cell.set_text({"hosts": ["10.0.0.5"], "ports": [8000], "netns": NETNS} if text is None else text)
    for field, value in {"engine_index": 0, **fields}.items():
        cell.set(field, value)
    cell.publish(now_ns or time.monotonic_ns())


def read(server_cells: ServerCells, address: Address = HERE) -> Signals | None:
    server_cells.refresh(time.monotonic_ns() + next(_FUTURE) * 300_000_000)
    reading = server_cells.reading(address)
    return reading.signals if reading is not None else None


def test_one_engine(cells: dict[str, EngineCellWriter], tmp_path: Path) -> None:
    server_cells = ServerCells(tmp_path)
    assert read(server_cells) is None
    text = {"ports": [8000], "netns": NETNS, "running": ["a"], "waiting": ["b"]}
    write(
        cells, tmp_path, "one", text=text, waiting=3, running=4, kv_cache_usage=0.5, sleep_level=0, lora_max=2, steps=9
    )
    signals = read(server_cells)
    assert signals is not None
    assert (signals.waiting, signals.running, signals.kv_cache_usage, signals.steps) == (3, 4, 0.5, 9)
    assert (signals.lora_running, signals.lora_waiting, signals.lora_max) == (frozenset("a"), frozenset("b"), 2)
    assert signals.sleeping is False
    assert (signals.prompt_tokens, signals.ttft_count, signals.models) == (None, None, None)
    write(cells, tmp_path, "one", text=text, waiting=30, sleep_level=1)
    signals = read(server_cells)
    assert signals is not None
    assert (signals.waiting, signals.sleeping) == (30, True)


@pytest.mark.parametrize(
    ("text", "address", "found"),
    [
        ({"ports": [8000], "hosts": ["10.0.0.5"], "netns": NETNS}, "10.0.0.5:8000", True),
        ({"ports": [8000], "hosts": ["10.0.0.5"], "netns": NETNS}, "127.0.0.1:8000", True),
        ({"ports": [8000], "hosts": ["10.0.0.5"], "netns": NETNS}, "localhost:8000", True),
        ({"ports": [8000], "hosts": ["10.0.0.5"], "netns": NETNS}, "[::1]:8000", True),
        ({"ports": [8000], "hosts": ["10.0.0.5"], "netns": 1}, "10.0.0.5:8000", True),
        ({"ports": [8000], "hosts": ["10.0.0.5"], "netns": 1}, "127.0.0.1:8000", False),
        ({"ports": [8000], "hosts": ["10.0.0.5"], "netns": 0}, "127.0.0.1:8000", False),
        ({"ports": [8000], "hosts": ["10.0.0.5"], "netns": NETNS}, "10.0.0.6:8000", False),
        ({"ports": [8000, 8001], "hosts": [], "netns": NETNS}, "127.0.0.1:8001", True),
        ({"ports": [8000], "hosts": [], "netns": NETNS}, "127.0.0.1:8001", False),
        ({"endpoints": ["10.0.0.9:80"], "ports": [8000], "netns": NETNS}, "10.0.0.9:80", True),
        ({"endpoints": ["10.0.0.9:80"], "ports": [8000], "netns": NETNS}, "127.0.0.1:8000", False),
        ({"endpoints": ["[fd00::9]:80"]}, "[fd00::9]:80", True),
        ({"endpoints": "10.0.0.9:80", "ports": "8000", "hosts": 3}, "10.0.0.9:80", False),
        ({}, "127.0.0.1:8000", False),
    ],
)
def test_whose_cell_it_is(
    cells: dict[str, EngineCellWriter], tmp_path: Path, text: dict[str, Any], address: str, found: bool
) -> None:
    write(cells, tmp_path, "one", text=text, waiting=3)
    assert (read(ServerCells(tmp_path), Address.parse(address)) is not None) is found


def test_new_numbers_and_new_places_of_known_cells_are_seen(cells: dict[str, EngineCellWriter], tmp_path: Path) -> None:
    server_cells = ServerCells(tmp_path)
    there = {"endpoints": ["10.0.0.9:1"]}
    for waiting in (1, 2):
        write(cells, tmp_path, "a", waiting=waiting)
        write(cells, tmp_path, "b", waiting=10 * waiting, text=there)
        found = [read(server_cells), read(server_cells, Address("10.0.0.9", 1))]
        assert [signals.waiting for signals in found if signals] == [waiting, 10 * waiting]
    write(cells, tmp_path, "b", waiting=7, engine_index=1)  # the same server from now on
    signals = read(server_cells)
    assert signals is not None
    assert signals.waiting == 9
    assert read(server_cells, Address("10.0.0.9", 1)) is None


def test_ranks_are_added_and_the_cache_share_is_the_mean(cells: dict[str, EngineCellWriter], tmp_path: Path) -> None:
    write(cells, tmp_path, "a", engine_index=0, waiting=1, running=2, kv_cache_usage=0.2, num_blocks=10, block_size=16)
    write(cells, tmp_path, "b", engine_index=1, waiting=3, running=4, kv_cache_usage=0.6, num_blocks=10, block_size=16)
    signals = read(ServerCells(tmp_path))
    assert signals is not None
    assert (signals.waiting, signals.running) == (4, 6)
    assert signals.kv_cache_usage == pytest.approx(0.4)
    assert (signals.num_blocks, signals.block_size) == (20, 16)


def test_a_rank_without_a_value_makes_the_sum_unknown(cells: dict[str, EngineCellWriter], tmp_path: Path) -> None:
    write(cells, tmp_path, "a", engine_index=0, waiting=1, running=2)
    write(cells, tmp_path, "b", engine_index=1, running=4)
    signals = read(ServerCells(tmp_path))
    assert signals is not None
    assert (signals.waiting, signals.running) == (None, 6)


def test_of_two_front_ends_the_newer_knows_the_load_and_both_have_counted(
    cells: dict[str, EngineCellWriter], tmp_path: Path
) -> None:
    now_ns = time.monotonic_ns()
    text = {"ports": [8000], "netns": NETNS, "running": ["a"]}
    write(cells, tmp_path, "p0", text=text, now_ns=now_ns - 50, waiting=9, generation_tokens=100, lora_max=4)
    other = {**text, "running": ["b"]}
    write(cells, tmp_path, "p1", text=other, now_ns=now_ns, waiting=2, generation_tokens=30, lora_max=4)
    server_cells = ServerCells(tmp_path)
    signals = read(server_cells)
    assert signals is not None
    assert (signals.waiting, signals.generation_tokens) == (2, 130)
    assert signals.lora_running == frozenset({"a", "b"})
    reading = server_cells.reading(HERE)
    assert reading is not None
    assert reading.observed_ns == now_ns


def test_without_lora_adapters_are_unknown(cells: dict[str, EngineCellWriter], tmp_path: Path) -> None:
    write(cells, tmp_path, "a", waiting=1)
    signals = read(ServerCells(tmp_path))
    assert signals is not None
    assert signals.lora_running is None


_WRITER = """
import sys, time
from pathlib import Path
from zerohop_snapshot import EngineCellWriter
from zerohop_snapshot.enginecell import ENGINE_FIELDS, EngineState
cell = EngineCellWriter(Path(sys.argv[1]), "victim")
cell.set_text({"endpoints": ["127.0.0.1:8000"]})
cell.set("engine_index", 0); cell.set("waiting", float(sys.argv[2])); cell.publish()
print("up", flush=True)
time.sleep(1000)
"""


def test_a_killed_engine_is_gone_at_once_and_its_successor_is_read(run: Processes, tmp_path: Path) -> None:
    server_cells = ServerCells(tmp_path)
    first = run.start(sys.executable, "-c", _WRITER, tmp_path, "7")
    eventually(lambda: (signals := read(server_cells)) is not None and signals.waiting == 7)
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: read(server_cells) is None)
    run.start(sys.executable, "-c", _WRITER, tmp_path, "2")
    eventually(lambda: (signals := read(server_cells)) is not None and signals.waiting == 2)


@given(st.data())
def test_one_cell_reads_as_several_would(data: st.DataObject) -> None:
    value = st.one_of(st.just(math.nan), st.floats(0, 1e6))
    fields = {name: data.draw(value) for name in ENGINE_FIELDS}
    texts: list[dict[str, Any]] = [{}, {"running": ["a"], "waiting": ["a", "b"]}, {"running": None}]
    text = data.draw(st.sampled_from(texts))
    state = EngineState("e", 1, 5, fields, text)
    assert plugin._of_one(state) == plugin._of_several([state])

"""The prefix directory: leading blocks per endpoint, bounded, shared, warm, and forgetful where it must be."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from zerohop_snapshot import SnapshotError, prefix
from zerohop_snapshot.prefix import FILE_NAME, PrefixDirectory
from zerohop_snapshot.prefixtable import SHORT

TICK = 10_000_000
#: both ways of looking up (plain walk and numpy) must give the same answers
DEPTHS = (4, SHORT, SHORT + 1, 100)


def blocks(count: int, seed: object = 0) -> bytes:
    return random.Random(str(seed)).randbytes(64 * count)


def insert(directory: PrefixDirectory, text: bytes, row: int, *, domain: bytes = b"m", **options: int) -> None:
    directory.insert(directory.hash_blocks(domain, text, 64), row, options.pop("generation", 1), **options)


def matched(directory: PrefixDirectory, text: bytes, domain: bytes = b"m") -> dict[int, int]:
    found = directory.match(directory.hash_blocks(domain, text, 64))
    return {row: int(count) for row, count in enumerate(found) if count}


@pytest.mark.parametrize("depth", DEPTHS)
def test_each_endpoint_matches_exactly_its_leading_blocks(tmp_path: Path, depth: int) -> None:
    directory = PrefixDirectory(tmp_path, entries=4096)
    text = blocks(depth)
    insert(directory, text, 0)
    insert(directory, text[: 64 * (depth // 2)] + blocks(9, "other"), 70)
    insert(directory, text[: 64 * 2], 255)
    insert(directory, blocks(1, "elsewhere") + text[64:], 3)
    assert matched(directory, text) == {0: depth, 70: depth // 2, 255: 2}
    assert matched(directory, text + blocks(5, "more")) == {0: depth, 70: depth // 2, 255: 2}
    assert matched(directory, blocks(1, "new") + text) == {}


def test_the_unfilled_last_block_and_an_empty_prompt_match_nothing(tmp_path: Path) -> None:
    directory = PrefixDirectory(tmp_path, entries=64)
    assert len(directory.hash_blocks(b"m", b"x" * 63, 64)) == 0
    assert len(directory.hash_blocks(b"m", b"x" * 200, 64)) == 3
    assert len(directory.hash_blocks(b"m", b"x" * 6400, 64, limit=7)) == 7
    insert(directory, b"", 1)
    assert matched(directory, b"x" * 63) == {}


def test_domains_never_match_each_other(tmp_path: Path) -> None:
    directory = PrefixDirectory(tmp_path, entries=64)
    text = blocks(3)
    insert(directory, text, 1, domain=b"model a")
    assert matched(directory, text, b"model a") == {1: 3}
    assert matched(directory, text, b"model b") == {}


def test_hashes_differ_between_directories(tmp_path: Path) -> None:
    one, two = PrefixDirectory(tmp_path / "1", entries=64), PrefixDirectory(tmp_path / "2", entries=64)
    assert one.hash_blocks(b"m", blocks(1), 64) != two.hash_blocks(b"m", blocks(1), 64)


@pytest.mark.parametrize("depth", DEPTHS)
def test_memory_is_bounded_and_a_full_table_still_learns(tmp_path: Path, depth: int) -> None:
    directory = PrefixDirectory(tmp_path, entries=512)
    size = (tmp_path / FILE_NAME).stat().st_size
    for number in range(10 * 512 // depth + 1):
        insert(directory, blocks(depth, number), number % 16, now_ns=(number + 1000) * TICK)
    stats = directory.stats()
    assert stats.entries <= stats.capacity == 512
    assert stats.entries > 400
    assert stats.evictions > 3000
    assert (tmp_path / FILE_NAME).stat().st_size == size
    assert matched(directory, blocks(depth, 10 * 512 // depth)), "the newest prompt is known"


def test_a_full_set_gives_up_the_tail_of_the_oldest_prompt_first(tmp_path: Path) -> None:
    directory = PrefixDirectory(tmp_path, entries=8)  # one set of 8 ways
    insert(directory, blocks(4, "old"), 1, now_ns=1000 * TICK)
    insert(directory, blocks(4, "new"), 2, now_ns=2000 * TICK)
    insert(directory, blocks(2, "newest"), 3, now_ns=3000 * TICK)
    assert matched(directory, blocks(4, "old")) == {1: 2}
    assert matched(directory, blocks(4, "new")) == {2: 4}


def test_use_keeps_a_prefix_alive(tmp_path: Path) -> None:
    directory = PrefixDirectory(tmp_path, entries=8)
    insert(directory, blocks(4, "hot"), 1, now_ns=1000 * TICK)
    insert(directory, blocks(4, "cold"), 2, now_ns=2000 * TICK)
    insert(directory, blocks(4, "hot"), 1, now_ns=3000 * TICK)
    insert(directory, blocks(3, "newest"), 3, now_ns=4000 * TICK)
    assert matched(directory, blocks(4, "hot")) == {1: 4}
    assert matched(directory, blocks(4, "cold")) == {2: 1}


def test_a_removed_endpoint_is_forgotten_and_cannot_come_back_late(tmp_path: Path) -> None:
    directory = PrefixDirectory(tmp_path, entries=256)
    text = blocks(5)
    insert(directory, text, 4, generation=7)
    insert(directory, text, 5, generation=1)
    directory.clear(4, generation=8)
    assert matched(directory, text) == {5: 5}
    insert(directory, text, 4, generation=7)
    assert matched(directory, text) == {5: 5}, "a late insert of the dead endpoint is ignored"
    insert(directory, text[:128], 4, generation=9)
    assert matched(directory, text) == {4: 2, 5: 5}
    assert directory.generation(4) == 9


def test_a_row_reused_by_a_newer_endpoint_starts_empty(tmp_path: Path) -> None:
    directory = PrefixDirectory(tmp_path, entries=256)
    insert(directory, blocks(5), 4, generation=1)
    insert(directory, blocks(2, "b"), 4, generation=2)
    assert matched(directory, blocks(5)) == {}


@pytest.mark.parametrize("depth", [8, 40])
def test_blocks_that_no_longer_fit_the_endpoints_cache_do_not_count(tmp_path: Path, depth: int) -> None:
    directory = PrefixDirectory(tmp_path, entries=8192)
    directory.set_capacity(1, 160)
    directory.set_capacity(2, 0)
    first = blocks(depth, "first")
    for row in (1, 2):
        insert(directory, first, row, now_ns=1000 * TICK)
    assert matched(directory, first) == {1: depth, 2: depth}
    for number in range(400 // depth):
        for row in (1, 2):
            insert(directory, blocks(depth, (row, number)), row, now_ns=(3000 + number * 100) * TICK)
    assert matched(directory, first) == {2: depth}
    newest = 400 // depth - 1
    assert matched(directory, blocks(depth, (1, newest))) == {1: depth}


@pytest.mark.parametrize("depth", [8, 40])
def test_prompts_that_another_endpoint_holds_already_fill_the_cache_too(tmp_path: Path, depth: int) -> None:
    directory = PrefixDirectory(tmp_path, entries=8192)
    prompts = [blocks(depth, number) for number in range(400 // depth)]
    for prompt in prompts:
        insert(directory, prompt, 2, now_ns=500 * TICK)
    directory.set_capacity(1, 160)
    for number, prompt in enumerate(prompts):
        insert(directory, prompt, 1, now_ns=(1000 + number * 100) * TICK)
    assert matched(directory, prompts[0]) == {2: depth}
    assert matched(directory, prompts[-1]) == {1: depth, 2: depth}
    for _ in range(50):
        insert(directory, prompts[-1], 1, now_ns=9000 * TICK)
    assert matched(directory, prompts[-2]) == {1: depth, 2: depth}, "what an endpoint holds already takes no new room"


OTHER = """
import pathlib, random, sys
from zerohop_snapshot.prefix import PrefixDirectory
directory = PrefixDirectory(pathlib.Path(sys.argv[1]), entries=1024)
text = random.Random("shared").randbytes(64 * 6)
directory.insert(directory.hash_blocks(b"m", text, 64), 9, 1)
"""


def test_another_process_and_a_restart_see_the_same_directory(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", OTHER, tmp_path], check=True)
    assert matched(PrefixDirectory(tmp_path, entries=1024), blocks(6, "shared")) == {9: 6}
    assert matched(PrefixDirectory(tmp_path, entries=1024), blocks(6, "shared")) == {9: 6}


def test_another_shape_or_a_foreign_file_is_replaced_by_an_empty_directory(tmp_path: Path) -> None:
    insert(PrefixDirectory(tmp_path, entries=1024), blocks(3), 1)
    assert matched(PrefixDirectory(tmp_path, entries=2048), blocks(3)) == {}
    (tmp_path / FILE_NAME).write_bytes(b"x" * 10)
    directory = PrefixDirectory(tmp_path, entries=2048)
    insert(directory, blocks(3), 1)
    assert matched(directory, blocks(3)) == {1: 3}
    (tmp_path / FILE_NAME).write_bytes(b"")
    assert matched(PrefixDirectory(tmp_path, entries=2048), blocks(3)) == {}


def test_a_directory_that_cannot_be_created_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SnapshotError, match="cannot create the shm directory"):
        PrefixDirectory(tmp_path / "file" / "x")


def test_statistics_and_the_hottest_entries(tmp_path: Path) -> None:
    directory = PrefixDirectory(tmp_path, entries=1024)
    insert(directory, blocks(4), 1, now_ns=1000 * TICK)
    insert(directory, blocks(1, "z"), 2, now_ns=5000 * TICK)
    matched(directory, blocks(8))
    matched(directory, blocks(8, "unknown"))
    stats = directory.stats()
    assert (stats.entries, stats.inserts, stats.lookups, stats.lookup_hits) == (5, 2, 2, 1)
    assert (stats.blocks, stats.blocks_hit) == (16, 4) or stats.blocks_hit == 4
    assert [rows for _, _, rows in directory.hottest(2)] == [[2], [1]]


def test_a_million_entries_take_forty_megabytes(tmp_path: Path) -> None:
    directory = PrefixDirectory(tmp_path, entries=1_000_000, endpoint_capacity=256)
    assert directory.stats().size_bytes <= 40 * 2**20


@pytest.mark.parametrize("depth", DEPTHS)
def test_many_holders_of_one_prompt_are_told_as_few_are(
    tmp_path: Path, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system prompt that all endpoints have seen; some of them have seen more since than their caches hold."""
    directory = PrefixDirectory(tmp_path, entries=32_768)
    text = blocks(depth)
    for row in range(60):
        directory.set_capacity(row, 2 * depth if row % 5 == 0 else 0)
        insert(directory, text, row, now_ns=(1000 + row) * TICK)
    for number in range(9):
        for row in range(0, 60, 10):
            insert(directory, blocks(depth, (number, row)), row, now_ns=(2000 + number) * TICK)
    many = matched(directory, text)
    monkeypatch.setattr(prefix, "_FEW", 1000)
    assert matched(directory, text) == many
    assert {row: many.get(row, 0) for row in range(1, 60, 2)} == dict.fromkeys(range(1, 60, 2), depth)
    assert all(many.get(row, 0) < depth for row in range(0, 60, 10))

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from zerohop_process.follow import follow_file


def following(path: Path) -> AsyncIterator[str | None]:
    return follow_file(path, interval_s=0.002)


async def following_text(source: AsyncIterator[str | None]) -> str | None:
    return await asyncio.wait_for(anext(source), 5)


async def test_each_content_is_yielded_once(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text("one")
    source = following(path)
    assert await following_text(source) == "one"
    path.write_text("two")
    assert await following_text(source) == "two"
    new = tmp_path / "new"
    new.write_text("six")
    new.replace(path)
    assert await following_text(source) == "six"


async def test_a_file_touched_but_not_changed_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text("one")
    source = following(path)
    assert await following_text(source) == "one"
    os.utime(path)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(source), 0.1)


async def test_a_swapped_symlink_is_seen(tmp_path: Path) -> None:
    # A Kubernetes volume: data is a link to a directory that is replaced whole.
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "endpoints.yaml").write_text(version)
    data = tmp_path / "data"
    data.symlink_to("v1")
    source = following(data / "endpoints.yaml")
    assert await following_text(source) == "v1"
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").replace(data)
    assert await following_text(source) == "v2"


async def test_an_absent_file_is_none_until_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    source = following(path)
    assert await following_text(source) is None
    path.write_text("here")
    assert await following_text(source) == "here"
    path.unlink()
    assert await following_text(source) is None


async def test_a_second_write_within_the_clock_tick_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text("one")
    stamp = path.stat()
    source = following(path)
    assert await following_text(source) == "one"
    path.write_text("two")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert await following_text(source) == "two"


async def test_bytes_that_are_no_text_come_through_for_the_reader_to_refuse(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_bytes(b"a: \xff")
    assert await following_text(following(path)) == "a: \udcff"

"""`zerohop check` and `zerohop prefix`, through the real command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.models.test_models import FILE
from unit.scheduling.broken import BROKEN
from unit.scheduling.world import World, chat
from zerohop_console.main import main

PROFILES = Path(__file__).parents[3] / "manifests/profiles"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("name", BROKEN)
def test_check_explains_a_broken_file_with_exit_code_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(BROKEN[name][0])
    assert main(["check", str(file)]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert str(file) in error
    for word in BROKEN[name][1]:
        assert word.removeprefix("c.yaml") in error


def test_check_prints_the_pipeline_with_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(PROFILES / "token-load.yaml")]) == 0
    printed = capsys.readouterr().out
    for words in ("affinityThreshold 0.8", "explorationProbability 0", "queueThresholdTokens 4194304", "weight 1",
                  "maxNumOfEndpoints 3", "metricsStalenessThreshold 200ms", "(filled in)"):  # fmt: skip
        assert words in printed


def test_check_without_a_file_shows_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 0
    assert "sticky-prefix-filter" in capsys.readouterr().out


def test_check_warns_of_a_signal_that_nobody_provides(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.add("a", waiting=1.0, kv_cache_usage=None)
    world.publish()
    profile = str(PROFILES / "gie.yaml")
    assert main(["check", profile, "--shm-dir", str(world.shm_dir), "--json"]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert any("'kv-cache-utilization-scorer' reads kv_cache_usage" in warning for warning in warnings)
    assert not any("queue-scorer" in warning for warning in warnings)
    assert main(["check", profile, "--shm-dir", str(world.shm_dir), "--strict"]) == 1


def test_check_says_when_there_is_no_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--shm-dir", str(tmp_path)]) == 0
    assert "no signal was checked" in capsys.readouterr().out


def test_check_lists_every_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--types"]) == 0
    printed = capsys.readouterr().out
    for words in ("queue-scorer", "maxTTFTPenaltyMs", "latency-scorer: use", "gpu_utilization"):
        assert words in printed


def test_check_reads_models_and_reports_what_is_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(
        FILE + "---\n" + FILE.split("---")[0].replace("name: chat,", "name: later,").replace("2026-01", "2026-02")
    )
    assert main(["check", str(file), "--strict"]) == 1
    printed = capsys.readouterr().out
    assert "chat-v1 100 %" in printed
    assert "in use by the older default/chat" in printed


def test_check_of_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "none.yaml")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_prefix_shows_sizes_rates_and_hashes_but_no_text(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.add("a")
    world.publish()
    scheduler = world.scheduler()
    for _ in range(3):
        world.pick(scheduler, chat("secret prompt " * 500))
    assert main(["prefix", "--shm-dir", str(world.shm_dir), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["lookups"] == 3
    assert found["lookup_hits"] == 2
    assert found["prompt_hit_ratio"] == pytest.approx(2 / 3)
    assert found["entries"] == 6
    assert found["hottest"][0]["endpoints"] == [world.address("a")]
    assert main(["prefix", "--shm-dir", str(world.shm_dir)]) == 0
    printed = capsys.readouterr().out
    assert world.address("a") in printed
    assert "secret" not in printed
    inode = (world.shm_dir / "prefix.dir").stat().st_ino
    assert main(["prefix", "--shm-dir", str(world.shm_dir)]) == 0
    assert (world.shm_dir / "prefix.dir").stat().st_ino == inode


@pytest.mark.parametrize("content", [None, b"", b"x" * 100, b"\0" * 4096])
def test_prefix_without_a_directory_says_what_to_do(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "prefix.dir").write_bytes(content)
    assert main(["prefix", "--shm-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "prefix.dir" in error
    assert "Traceback" not in error
    if content is not None:
        assert (tmp_path / "prefix.dir").read_bytes() == content

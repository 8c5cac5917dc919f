"""Plugins from a file outside the project: the documented example, hot reload, the time budget, and isolation."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from unit.scheduling.world import HEAD, World, chat
from zerohop_picker.scheduling import load
from zerohop_picker.scheduling.guard import STRIKES, WATCH
from zerohop_picker.scheduling.scheduler import StandardScheduler
from zerohop_picker.scheduling_contract import Decision
from zerohop_process.errors import ConfigError

#: The plugins' own timer is SIGALRM, which pytest-timeout would use, too.
pytestmark = pytest.mark.timeout(60, method="thread")

DOCS = (Path(__file__).parents[3] / "docs/plugins.md").read_text()
BY_NAME = """
def score(endpoints, request, *, wanted="a"):
    return [1.0 if name.endswith(wanted) else 0.0 for name in (endpoints.view.names.names[r] for r in endpoints.rows)]
score.budget_ms = 5000
"""
#: Where a test is not about time: on a busy machine a process may stand still for longer than the default budget.
PATIENT = "score.budget_ms = 5000\n"


def config(path: Path, parameters: str = "", function: str = "score") -> str:
    extra = f"  parameters: {parameters}\n" if parameters else ""
    return HEAD + (
        f"plugins:\n- type: {path}:{function}\n  name: mine\n{extra}"
        "schedulingProfiles:\n- name: default\n  plugins: [{pluginRef: mine}]\n"
    )


def write(path: Path, text: str) -> None:
    """Replace a file as an editor does: new inode, so that no time resolution can hide the change."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)  # noqa: PTH105


def two(world: World) -> None:
    world.add("a")
    world.add("b")
    world.publish()


def test_the_example_in_the_documentation_runs(world: World, tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", DOCS, re.DOTALL)
    yaml = re.search(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
    assert code is not None
    assert yaml is not None
    assert len([line for line in code[1].splitlines() if line.strip() and not line.startswith("#")]) <= 10
    (tmp_path / "cool_gpus.py").write_text(code[1] + "\nprefer_idle_gpus.budget_ms = 5000\n")
    source = tmp_path / "config.yaml"
    source.write_text(yaml[1])
    world.add("busy", gpu_utilization=0.9)
    world.add("idle", gpu_utilization=0.1, waiting=1.0)
    world.publish()
    scheduler = world.scheduler(yaml[1], source=str(source))
    assert world.pick(scheduler, chat("x" * 12_000)) == "idle"
    assert world.pick(scheduler, chat("short")) == "busy"


def test_every_name_in_the_documented_view_exists(world: World) -> None:
    two(world)
    scheduler = world.scheduler()
    decision = scheduler.schedule(chat(), world.now_ns)
    assert isinstance(decision, Decision)
    view = scheduler._latest.view(world.now_ns)
    assert view is not None
    endpoints = scheduler._candidates.of(view, None, None, world.now_ns)
    rows = re.search(r"## `endpoints`.*?\n\n(.*?)## `request`", DOCS, re.DOTALL)
    assert rows is not None
    for name in re.findall(r"^\| `(\w+)", rows[1], re.MULTILINE):
        assert hasattr(endpoints, name), name
    columns = rows[1].partition("Columns:")[2].partition("(counters")[0]
    for name in re.findall(r"`(\w+)`", columns):
        assert len(endpoints.column(name)) == 2, name


def test_an_edit_changes_picks_and_a_bad_one_keeps_the_last_good(world: World, tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    write(plugin, BY_NAME)
    two(world)
    scheduler = world.scheduler(config(plugin))
    assert {world.pick(scheduler) for _ in range(5)} == {"a"}
    write(plugin, BY_NAME.replace('"a"', '"b"'))
    world.now_ns += 1_000_000_000
    assert {world.pick(scheduler) for _ in range(5)} == {"b"}
    write(plugin, "def score(:\n")
    world.now_ns += 900_000_000
    assert {world.pick(scheduler) for _ in range(5)} == {"b"}
    assert scheduler.measures.reloads.labels("loaded").value == 1
    assert scheduler.measures.reloads.labels("failed").value == 1


def test_a_plugin_that_sleeps_is_cut_off_and_then_rests(world: World, tmp_path: Path) -> None:
    plugin = tmp_path / "sleepy.py"
    write(
        plugin,
        "import time\n" + BY_NAME.replace("    return", "    time.sleep(30)\n    return") + "score.budget_ms = 20\n",
    )
    two(world)
    scheduler = world.scheduler(config(plugin))
    for _ in range(STRIKES):
        world.pick(scheduler)
    health = WATCH.of("mine")
    assert health.cut_off >= STRIKES
    before = health.skipped
    world.pick(scheduler)
    assert health.skipped == before + 1


def test_past_the_requests_deadline_the_fallback_answers(world: World, tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    write(plugin, BY_NAME)
    two(world)
    scheduler = world.scheduler(config(plugin))
    assert world.pick(scheduler, chat(deadline_ns=1)) in "ab"
    assert scheduler.measures.fallbacks.value == 1
    assert world.pick(scheduler, chat(deadline_ns=1 << 62)) == "a"
    assert scheduler.measures.fallbacks.value == 1


def test_a_loop_that_swallows_exceptions_is_cut_off_too(world: World, tmp_path: Path) -> None:
    plugin = tmp_path / "loop.py"
    loop = "    while True:\n        try:\n            pass\n        except Exception:\n            pass\n"
    write(plugin, "def score(endpoints, request):\n" + loop + "score.budget_ms = 10\n")
    two(world)
    before = WATCH.of("mine").cut_off
    assert world.pick(world.scheduler(config(plugin))) in "ab"
    assert WATCH.of("mine").cut_off == before + 1


@pytest.mark.parametrize(
    "body",
    ["raise ValueError('no')", "return [1.0]", "return 'text'", "return None", "1 / 0", "return [[1.0], [2.0]]"],
)
def test_a_plugin_that_fails_has_no_say(world: World, tmp_path: Path, body: str) -> None:
    plugin = tmp_path / "bad.py"
    write(plugin, f"def score(endpoints, request):\n    {body}\n{PATIENT}")
    two(world)
    text = (
        config(plugin)
        .replace("[{pluginRef: mine}]", "[{pluginRef: mine}, {pluginRef: queue-scorer}]")
        .replace("schedulingProfiles", "- type: queue-scorer\nschedulingProfiles")
    )
    world.change("a", waiting=3.0)
    world.publish()
    before = WATCH.of("mine").errors
    assert world.pick(world.scheduler(text)) == "b"
    assert WATCH.of("mine").errors == before + 1


def test_scores_out_of_range_are_clamped_and_nan_is_no_opinion(world: World, tmp_path: Path) -> None:
    plugin = tmp_path / "wild.py"
    write(plugin, "def score(endpoints, request):\n    return [float('nan'), 1e9, -5.0]\n" + PATIENT)
    two(world)
    world.add("c")
    world.publish()
    scheduler = world.scheduler(config(plugin))
    assert {world.pick(scheduler) for _ in range(10)} == {"b"}


def test_a_filter_is_marked_as_one(world: World, tmp_path: Path) -> None:
    plugin = tmp_path / "keep.py"
    write(plugin, "def score(endpoints, request):\n    return endpoints.rows == 1\nscore.kind = 'filter'\n" + PATIENT)
    two(world)
    scheduler = world.scheduler(config(plugin))
    assert {world.pick(scheduler) for _ in range(5)} == {"b"}


def test_outside_the_main_thread_there_is_no_timer_but_a_verdict(world: World, tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    write(plugin, BY_NAME)
    two(world)
    picked: list[str] = []
    made: list[StandardScheduler] = []

    def work() -> None:
        made.append(world.scheduler(config(plugin)))
        picked.append(world.pick(made[0]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert picked == ["a"]


@pytest.mark.parametrize(
    ("text", "parameters", "words"),
    [
        ("def other(endpoints, request): ...\n", "", "has no function 'score'"),
        ("def score(endpoints): ...\n", "", "must take (endpoints, request)"),
        ("import no_such_thing\n", "", "line 1: ModuleNotFoundError"),
        ("x = 1\nscore = 1 / 0\n", "", "line 2: ZeroDivisionError"),
        ("def score(endpoints, request, *, wanted='a'): ...\n", "{wantde: b}", "did you mean 'wanted'"),
        ("def score(endpoints, request, *, wanted=1): ...\n", "{wanted: b}", "whole number"),
        ("def score(endpoints, request, *, wanted): ...\n", "", "'wanted' is missing"),
        ("score = 5\n", "", "is not a function"),
        ("def score(endpoints, request): ...\nscore.kind = 'picker'\n", "", "must be one of filter, scorer"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_explained(tmp_path: Path, text: str, parameters: str, words: str) -> None:
    plugin = tmp_path / "mine.py"
    write(plugin, text)
    with pytest.raises(ConfigError) as caught:
        load(config(plugin, parameters), "c.yaml")
    assert words in str(caught.value)

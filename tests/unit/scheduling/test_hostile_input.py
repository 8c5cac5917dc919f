"""Configurations, headers and snapshots that nobody meant: an explained error or a decision, never anything else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.models.test_models import FILE
from unit.scheduling.synthetic import endpoints, request
from unit.scheduling.test_scorers import LORA
from unit.scheduling.world import World, chat
from zerohop_picker.models.resources import load_resources
from zerohop_picker.scheduling import load
from zerohop_picker.scheduling.pipeline import Nothing, Pipeline
from zerohop_picker.scheduling_contract import Decision, Refusal
from zerohop_picker.state.names import decode
from zerohop_process.errors import ConfigError

TEXTS = [path.read_text() for path in (Path(__file__).parents[3] / "manifests/profiles").glob("*.yaml")]
TOKENS = [
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "&a",
    "*a",
    "!!x",
    "\t",
    "'",
    '"',
    "null",
    "~",
    "1e999",
    "-1",
    "true",
    "\x00",
    "é",
    "weight",
    "x",
]


def damaged(text: str, source: random.Random) -> str:
    """The text with a line, a word or a character changed, a few times."""
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(text) + 1)
        kind = source.randrange(4)
        if kind == 0:
            text = text[:at] + source.choice(TOKENS) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + source.randint(1, 12) :]
        elif kind == 2:
            lines = text.splitlines(keepends=True)
            lines.insert(source.randrange(len(lines) + 1), source.choice(lines))
            text = "".join(lines)
        else:
            lines = text.splitlines(keepends=True)
            del lines[source.randrange(len(lines))]
            text = "".join(lines) or "x"
    return text


def try_all(rounds: int, seed: int) -> None:
    source = random.Random(seed)
    for _ in range(rounds):
        for text, read in [(source.choice(TEXTS), load), (FILE, load_resources)]:
            said = ""
            try:
                read(damaged(text, source), "c.yaml")  # type: ignore[operator]
            except ConfigError as error:
                said = str(error)
            assert said == "" or said.startswith("c.yaml")


def test_a_damaged_file_is_refused_in_words_or_means_something() -> None:
    try_all(60, seed=1)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(2))
def test_many_damaged_files(seed: int) -> None:
    try_all(1000, seed=100 + seed)


@pytest.mark.parametrize("cold", [b"", b"\xc1", b"\x93\x01", b"x" * 50, b"\x81\xa9endpoints\x81\x00\x80"])
def test_an_unreadable_cold_map_means_no_names(cold: bytes) -> None:
    assert decode(cold, 8).addresses == [None] * 8


wild = st.one_of(st.none(), st.just(float("inf")), st.just(-1.0), st.floats(-1e9, 1e9, width=32))


@settings(max_examples=25, deadline=None)
@given(data=st.data(), text=st.sampled_from(TEXTS))
def test_wild_values_give_an_ordered_list_without_repeats(data: st.DataObject, text: str) -> None:
    size = data.draw(st.integers(1, 10))
    columns: dict[str, Any] = {
        name: data.draw(st.lists(wild, min_size=size, max_size=size))
        for name in ("waiting", "running", "kv_cache_usage", "slowdown", "lora_max", "lora_count", "gpu_utilization")
    }
    made = endpoints(size, LORA, **columns)
    asked = request(made, matched=[1] * size, blocks=2, model="a")
    for profile in Pipeline(load(text, "c.yaml")).profiles.values():
        outcome = profile.run(made, asked)
        if not isinstance(outcome, Nothing):
            assert 1 <= len(outcome.rows) == len(set(outcome.rows)) <= size


@pytest.mark.parametrize("value", ["", "\x00", "é" * 5000, "10.0.0.0:8000", "a,b,,", "=" * 100])
@pytest.mark.parametrize(
    "header", ["x-session-token", "x-session-id", "epp-profile", "test-epp-endpoint-selection", "x-zerohop-debug"]
)
def test_any_header_value_is_survived(world: World, header: str, value: str) -> None:
    world.add("a")
    world.publish()
    for index, text in enumerate(TEXTS):
        scheduler = world.scheduler(text, worker=f"w{index}")
        answer = scheduler.schedule(chat(headers={header: value}, objective=value, target_model=value), world.now_ns)
        assert isinstance(answer, Decision | Refusal)
        assert scheduler.measures.faults.value == 0

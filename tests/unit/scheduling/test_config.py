"""The configuration loader: what it accepts, what it fills in, and how it explains what it does not."""

# ruff: noqa: E501 - a table reads best with one case a line
from __future__ import annotations

from pathlib import Path

import pytest

from unit.scheduling.broken import BROKEN, HEAD, PROFILE
from zerohop_picker.scheduling import load
from zerohop_process.errors import ConfigError

PROFILES = sorted((Path(__file__).parents[3] / "manifests/profiles").glob("*.yaml"))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_configuration_is_explained_in_one_sentence(name: str) -> None:
    text, words = BROKEN[name]
    with pytest.raises(ConfigError) as caught:
        load(text, "c.yaml")
    message = str(caught.value)
    assert message.startswith("c.yaml")
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_that_ships_loads_without_a_warning(path: Path) -> None:
    config = load(path.read_text(), str(path))
    expected = 1 if path.stem == "gie" else 0  # the field's own version string is deprecated
    assert len(config.warnings) == expected, config.warnings


def test_profiles_ship_for_every_style() -> None:
    assert {path.stem for path in PROFILES} >= {"gie", "sticky", "prefix-aware", "lora", "session", "pd", "token-load"}


def test_sticky_yaml_is_the_default_spelled_out() -> None:
    shipped = load(next(path for path in PROFILES if path.stem == "sticky").read_text(), "sticky.yaml")
    default = load()
    assert {n: (p.type.type, dict(p.values)) for n, p in shipped.plugins.items()} == {
        n: (p.type.type, dict(p.values)) for n, p in default.plugins.items()
    }


def test_a_configuration_without_plugins_is_the_fields_default() -> None:
    profile = load(HEAD, "c.yaml").profiles["default"]
    assert [(plugin.name, weight) for plugin, weight in profile.scorers] == [
        ("queue-scorer", 2.0), ("kv-cache-utilization-scorer", 2.0), ("prefix-cache-scorer", 3.0),
    ]  # fmt: skip
    assert profile.picker.name == "max-score-picker"


def test_plugins_without_profiles_make_one_profile() -> None:
    config = load(HEAD + "plugins:\n- type: queue-scorer\n- type: low-queue-filter\n", "c.yaml")
    profile = config.profiles["default"]
    assert [plugin.name for plugin in profile.filters] == ["low-queue-filter"]
    assert [(plugin.name, weight) for plugin, weight in profile.scorers] == [("queue-scorer", 1.0)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + "plugins:\n- type: queue-scorer\n" + PROFILE + "    weight: 0\n", "weight 0"),
        (HEAD + "plugins:\n- type: queue-scorer\n" + PROFILE + "    weight: 5\n", "no other scorer"),
        (HEAD + "plugins:\n- type: queue-scorer\n- type: running-requests-size-scorer\n" + PROFILE, "in no scheduling profile"),
        (HEAD + "plugins:\n- type: queue-scorer\n- type: random-picker\n" + PROFILE + "  - pluginRef: random-picker\n", "ignores scores"),
        (HEAD + "plugins:\n- type: low-queue-filter\n- type: queue-scorer\n" + PROFILE + "  - pluginRef: low-queue-filter\n    weight: 2\n", "it is a filter"),
        (HEAD + "plugins:\n- type: by-label\n  parameters: {label: x}\n", "deprecated"),
    ],
)  # fmt: skip
def test_what_cannot_matter_is_warned_of(text: str, words: str) -> None:
    assert any(words in warning for warning in load(text, "c.yaml").warnings)


@pytest.mark.parametrize(
    "text",
    [
        "saturationDetector: {queueDepthThreshold: 7, kvCacheUtilThreshold: 0.5, metricsStalenessThreshold: 300ms}\n",
        "plugins:\n- type: utilization-detector\n  parameters: {queueDepthThreshold: 7}\nsaturationDetector: {pluginRef: utilization-detector}\n",
        "plugins:\n- type: utilization-detector\n  parameters: {queueDepthThreshold: 7}\nflowControl: {saturationDetector: {pluginRef: utilization-detector}}\n",
    ],
)
def test_the_saturation_detector_is_read_in_all_its_places(text: str) -> None:
    assert load(HEAD + text, "c.yaml").detector.values["queueDepthThreshold"] == 7


def test_what_the_agent_does_is_accepted() -> None:
    text = HEAD + (
        "plugins:\n- type: metrics-data-source\n  parameters: {scheme: http, path: /metrics, insecureSkipVerify: true}\n- type: core-metrics-extractor\n- type: openai-parser\n"
        "dataLayer:\n  sources:\n  - pluginRef: metrics-data-source\n    extractors:\n    - pluginRef: core-metrics-extractor\n"
        "requestHandler:\n  parsers:\n  - pluginRef: openai-parser\n"
    )
    assert load(text, "c.yaml").warnings == ()


@pytest.mark.parametrize(
    ("spelling", "tokens"), [("blockSize: 128", 128), ("hashBlockSize: 256", 64), ("hashBlockSize: 2", 1)]
)
def test_older_names_of_the_block_size_are_read(spelling: str, tokens: int) -> None:
    config = load(HEAD + f"plugins:\n- type: prefix-cache-scorer\n  parameters: {{{spelling}}}\n", "c.yaml")
    assert (config.prefix.auto_tune, config.prefix.block_size_tokens) == (False, tokens)


def test_prefix_settings_come_from_the_producer_or_the_scorer() -> None:
    scorer = load(
        HEAD + "plugins:\n- type: prefix-cache-scorer\n  parameters: {autoTune: false, blockSizeTokens: 128}\n",
        "c.yaml",
    )
    assert (scorer.prefix.auto_tune, scorer.prefix.block_size_tokens) == (False, 128)
    producer = load(
        HEAD
        + "plugins:\n- type: prefix-cache-scorer\n- type: approx-prefix-cache-producer\n  parameters: {maxPrefixBlocksToMatch: 9}\n",
        "c.yaml",
    )
    assert producer.prefix.max_blocks == 9

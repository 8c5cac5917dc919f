"""The `gpu:` section of the agent's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerohop_agent.collectors.gpu.settings import GpuSettings, read_gpu_settings
from zerohop_agent.condition import ConditionSettings
from zerohop_process.errors import ConfigError
from zerohop_process.strict import load_yaml


def read(text: str) -> GpuSettings:
    return read_gpu_settings(load_yaml(text, "agent.yaml"))


def test_an_empty_section_is_the_default() -> None:
    assert read("{}") == GpuSettings()


def test_every_field_is_read() -> None:
    settings = read(
        """
        interval: 500ms
        slow_interval: 30s
        deadline: 3s
        start_deadline: 90s
        retry: 2s
        max_retry: 2m
        absent_retry: 1h
        exit_after_unknown_errors: 5
        release_file: /run/zerohop/release-gpus
        pod_resources_socket: /host/kubelet.sock
        pod_resources_interval: 9s
        condition:
          observe_only: true
          drain_lost: false
          drain_row_remap_failure: false
          drain_xid: false
          ecc_uncorrectable: 4
          heal_after: 7s
          xid_also: [31]
          xid_ignore: [74, 94]
          xid_hold: 2m
          xid_reset_hold: 2h
          slowdown_min: 1.5
          slowdown_max: 4
          slowdown_after: 3s
          slowdown_clear: 20s
          slowdown_power_cap: true
        """
    )
    assert settings.interval_ns == 500_000_000
    assert settings.release_file == Path("/run/zerohop/release-gpus")
    assert settings.exit_after_unknown == 5
    assert settings.condition.observe_only
    assert settings.condition.xid_ignore == {74, 94}
    assert settings.condition.slowdown_max == 4.0
    defaults = GpuSettings()
    names = [name for name in GpuSettings.__slots__ if getattr(settings, name) == getattr(defaults, name)]
    assert names == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("intervall: 1s", "did you mean 'interval'"),
        ("interval: 5", "5ms or 5s"),
        ("condition: {xid_also: [a]}", "list of XID codes"),
        ("condition: {slowdown_min: 0.5}", "slowdown_min must be 1 or more"),
        ("condition: {drain: true}", "unknown field"),
    ],
)
def test_mistakes_name_the_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(text)
    assert str(caught.value).startswith("agent.yaml:")


def test_the_documented_defaults_are_the_defaults() -> None:
    text = (Path(__file__).parents[3] / "docs" / "gpus.md").read_text()
    block = text.split("```yaml\n")[1].split("```")[0]
    section = load_yaml(block, "docs/gpus.md").members()["gpu"]
    assert read_gpu_settings(section) == GpuSettings()
    condition = section.members()["condition"].members()
    assert len(section.members()) == len(GpuSettings.__slots__)
    assert len(condition) == len(ConditionSettings.__slots__)

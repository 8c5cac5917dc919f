"""The `gpu:` section of the agent's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerohop_agent.collectors.gpu.settings import GpuSettings, read_gpu_settings
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
        slowInterval: 30s
        deadline: 3s
        startDeadline: 90s
        retry: 2s
        maxRetry: 2m
        absentRetry: 1h
        exitAfterUnknownErrors: 5
        releaseFile: /run/zerohop/release-gpus
        podResourcesSocket: /host/kubelet.sock
        condition:
          observeOnly: true
          drainLost: false
          drainRowRemapFailure: false
          drainXid: false
          eccUncorrectable: 4
          healAfter: 7s
          xidAlso: [31]
          xidIgnore: [74, 94]
          xidHold: 2m
          xidResetHold: 2h
          slowdownMin: 1.5
          slowdownMax: 4
          slowdownAfter: 3s
          slowdownClear: 20s
          slowdownPowerCap: true
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
        ("condition: {xidAlso: [a]}", "list of XID codes"),
        ("condition: {slowdownMin: 0.5}", "slowdownMin must be 1 or more"),
        ("condition: {drain: true}", "unknown field"),
    ],
)
def test_mistakes_name_the_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(text)
    assert str(caught.value).startswith("agent.yaml:")

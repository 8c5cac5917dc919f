from __future__ import annotations

from pathlib import Path

import pytest

from support.nvml import Boards


@pytest.fixture
def boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Boards:
    control = Boards(tmp_path, count=2)
    for name, value in control.environment().items():
        monkeypatch.setenv(name, value)
    return control

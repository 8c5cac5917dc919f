from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gw")
    (folder / "shm").mkdir()
    return folder

"""Reads one page, for tests of what it says."""

from __future__ import annotations

import pytest

from zerohop_agent.modelserver.page import PageReader
from zerohop_agent.signals import Signals, SourceError
from zerohop_snapshot.layout import UnhealthyReason as R


def read(page: str, engine: str | None = None, content_type: str = "") -> Signals:
    return PageReader(engine).read(page.encode(), content_type)


def refusal(page: bytes, engine: str | None = None, content_type: str = "") -> tuple[R, str]:
    with pytest.raises(SourceError) as caught:
        PageReader(engine).read(page, content_type)
    return caught.value.reason, caught.value.detail

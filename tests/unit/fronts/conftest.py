"""These tests run on uvloop, as the picker does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from support.fronts import Served, serving
from support.schedulers import FixedScheduler
from unit.fronts.peers import LIMITS
from zerohop_picker.protocol.core import ProtocolCore
from zerohop_picker.protocol.settings import ProtocolSettings


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A native front with small limits."""
    core = ProtocolCore(FixedScheduler(), ProtocolSettings(response="observe"))
    async with serving("native", core, f"unix:{tmp_path}/picker.sock", limits=LIMITS) as served:
        yield served

"""One exchange with a core whose scheduler answers as it is told."""

from __future__ import annotations

from typing import Any

from support.extproc import Exchange
from support.schedulers import FixedScheduler
from zerohop_picker.protocol import ProtocolCore, ProtocolSettings

PICK = "10.0.0.1:8000,10.0.0.2:8000"


def exchange(scheduler: FixedScheduler | None = None, **settings: Any) -> Exchange:
    return Exchange(ProtocolCore(scheduler or FixedScheduler(), ProtocolSettings(**settings)))

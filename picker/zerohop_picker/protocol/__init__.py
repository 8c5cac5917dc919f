"""The endpoint picker protocol over ext-proc, sans-IO: messages in, replies out; no socket, clock or logging.

Where to start reading: `table` (every transition), then `stream` (what a front calls), `request_side` and
`response_side` (what each transition does). `wire` and `replies` are the bytes, `refusals` the error answers,
`core` what streams share, `settings` what can be chosen and what is counted.

May import: `zerohop_picker.request`, `zerohop_picker.scheduling_contract`, `zerohop_picker._pb`. Never: grpc, ngh2,
asyncio, logging, time.
"""

from __future__ import annotations

from zerohop_picker.protocol.core import ProtocolCore
from zerohop_picker.protocol.errors import StreamFault
from zerohop_picker.protocol.settings import ProtocolCounters, ProtocolSettings
from zerohop_picker.protocol.stream import ExtProcStream

__all__ = ["ExtProcStream", "ProtocolCore", "ProtocolCounters", "ProtocolSettings", "StreamFault"]

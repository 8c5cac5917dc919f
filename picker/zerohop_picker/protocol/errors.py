"""How a stream or a request fails.

Exception
├── PeerError     - the request is refused: an immediate response, the stream then ends well
└── StreamFault   - the peer does not speak the protocol: the stream ends with a gRPC status
"""

from __future__ import annotations

from zerohop_picker.scheduling_contract import Refusal

INVALID_ARGUMENT = 3


class PeerError(Exception):
    """The request is answered here and not forwarded."""

    def __init__(self, refusal: Refusal):
        super().__init__(refusal.message)
        self.refusal = refusal


class StreamFault(Exception):
    """What was sent is not the external processing protocol."""

    def __init__(self, message: str, grpc_status: int = INVALID_ARGUMENT):
        super().__init__(message)
        self.message = message
        self.grpc_status = grpc_status

"""The answers that the picker gives in a model server's place: one table of reasons, one shape of body.

Statuses follow docs/protocol.md; the JSON body has OpenAI's error shape, so that clients show the message.
"""

from __future__ import annotations

import msgspec

from zerohop_picker.scheduling_contract import Refusal

NO_ENDPOINTS = Refusal(503, "rejected-no-endpoints", "no endpoint of the pool is ready for this request")
SUBSET_EMPTY = Refusal(503, "rejected-no-endpoints", "the gateway's subset hint allows no endpoint")
HELD_TOO_MUCH = Refusal(503, "rejected-overloaded", "the endpoint picker holds too many request bodies; try again", 1)
SCHEDULER_FAILED = Refusal(500, "", "the endpoint picker failed to decide")
BODY_MISSING = Refusal(400, "", "request body expected before trailers")

#: HTTP status -> gRPC status, for clients that speak gRPC.
GRPC_STATUS = {400: 3, 401: 16, 403: 7, 404: 5, 412: 9, 413: 8, 429: 8, 500: 13, 503: 14, 504: 4}


def too_large(limit_bytes: int) -> Refusal:
    """413: the body is longer than what is held."""
    return Refusal(413, "", f"request body is larger than {limit_bytes} bytes")


def bad_request(message: str) -> Refusal:
    """400: the client's fault."""
    return Refusal(400, "", message)


def error_body(refusal: Refusal) -> bytes:
    """`{"error": {...}}` as OpenAI's API has it."""
    return msgspec.json.encode(
        {
            "error": {
                "message": refusal.message,
                "type": _kind(refusal.status),
                "param": "model" if refusal.status == 400 and refusal.message.startswith("model ") else None,
                "code": refusal.reason or None,
            }
        }
    )


def _kind(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if 400 <= status < 500 else "server_error"

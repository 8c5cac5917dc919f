"""The canonical prompt: one byte string per request, whose prefixes are the prefixes of the conversation."""

from __future__ import annotations

from zerohop_picker.request.kinds import RequestKind


def canonical(kind: RequestKind, body: bytes) -> tuple[bytes, str | None]:
    """(canonical prompt, cache salt) of one body."""
    return body, None

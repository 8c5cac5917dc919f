"""The `model` part of a multipart form: found without copying or judging the other parts.

A form that is malformed is not the picker's to refuse (llm-d/llm-d-router#2506): it has no model, and goes on as it is.
"""

from __future__ import annotations

import re

_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))', re.IGNORECASE)
_NAME_IS_MODEL = re.compile(rb'\bname="model"|\bname=model(?=[;\s]|$)', re.IGNORECASE)
#: Longest part header block that is looked at, and longest model name.
_HEADER_BYTES = 4096
_MODEL_BYTES = 1024


def model_span(body: bytes, content_type: str) -> tuple[int, int] | None:
    """Start and end of the value of the last part named `model`; None when there is none that is whole."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        return None
    delimiter = b"--" + (found.group(1) or found.group(2)).encode("latin-1", "replace")
    span = None
    at = 0 if body.startswith(delimiter) else _next(body, delimiter, 0)
    while at >= 0:
        start = at + len(delimiter)
        following = _next(body, delimiter, start)
        if following < 0 or body[start : start + 2] == b"--":
            break
        head_end = body.find(b"\r\n\r\n", start, min(start + _HEADER_BYTES, following))
        if head_end >= 0 and _NAME_IS_MODEL.search(body, start, head_end):
            value = head_end + 4, following - 2
            if 0 <= value[1] - value[0] <= _MODEL_BYTES:
                span = value
        at = following
    return span


def read_model(body: bytes, content_type: str) -> str | None:
    """The form's model name, or None."""
    span = model_span(body, content_type)
    if span is None:
        return None
    try:
        return body[span[0] : span[1]].decode() or None
    except UnicodeDecodeError:
        return None


def _next(body: bytes, delimiter: bytes, start: int) -> int:
    """Where the next delimiter line's dashes begin, or -1. The line ends there: `--X1` is no `--X`."""
    while True:
        at = body.find(b"\r\n" + delimiter, start)
        if at < 0:
            return -1
        end = at + 2 + len(delimiter)
        if body[end : end + 2] in (b"\r\n", b"--"):
            return at + 2
        start = end

"""What routing reads of a body - the model name, and whether the answer is streamed - and the splice that renames.

A body is never serialised again. `splice_model` replaces the bytes of one value and leaves every other byte as it was:
a body that went through a parser and back would round 9007199254740993 (llm-d/llm-d-router#2518) and change `1.0e2`,
`-0.0`, key order and escapes.

Keys that occur twice: the last one counts, as in Python's json, orjson, Go's encoding/json and JavaScript. Only that
value is read, and only that value is replaced.
"""

from __future__ import annotations

import json
import re

import msgspec
import numpy as np

from zerohop_picker.request import multipart
from zerohop_picker.request.shapes import BodyFacts, ModelValue

#: Bodies that the fast parser refuses are given to Python's own, which model servers use: it takes lone surrogates, a
#: byte order mark, NaN and deeper nesting. It is 10 times slower, so only bodies up to this size get the second look.
SECOND_LOOK_BYTES = 1 << 20

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_COLON = re.compile(rb"\s*:\s*")
_VALUE_END = re.compile(rb"[\s,}]")


class BodyError(Exception):
    """The body is not what its path requires. The message may be shown to the client and never quotes the body."""


_facts = msgspec.json.Decoder(BodyFacts)
_model_value = msgspec.json.Decoder(ModelValue)

NOTHING = BodyFacts()


def read_json(body: bytes | bytearray | memoryview, *, model_required: bool) -> BodyFacts:
    """Model and stream flag of a JSON body.

    Cost: 1 us for 2 kB, 90 us for 220 kB; values that are not asked for are skipped, not built.

    Raises:
        BodyError: not JSON, not an object, `model` missing (when required), not a string or empty.
    """
    try:
        facts = _facts.decode(body)
    except msgspec.ValidationError as error:
        raise BodyError(_what_is_wrong(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        facts = _second_look(body)
    if not facts.model:
        if facts.model is not None:
            raise BodyError("model must not be empty")
        if model_required:
            raise BodyError("model not found in request body")
    return facts


def model_of_beginning(body: bytes) -> str | None:
    """The model name in the first part of a JSON body, or None. A later member of the same name is not seen."""
    span = _scan_for_model(body)
    if span is None:
        return None
    try:
        model = json.loads(body[span[0] : span[1]])
    except ValueError:
        return None
    return model if isinstance(model, str) and model else None


def splice_model(body: bytes, content_type: str, model: str) -> bytes | None:
    """`body` with its model renamed and every other byte kept; None when it has no model to rename."""
    if content_type.startswith("multipart/"):
        span = multipart.model_span(body, content_type)
        value = model.encode()
    else:
        span = json_model_span(body)
        value = msgspec.json.encode(model)
    if span is None:
        return None
    view = memoryview(body)
    return b"".join((view[: span[0]], value, view[span[1] :]))


def json_model_span(body: bytes) -> tuple[int, int] | None:
    """Start and end of the bytes of the top-level `model` value, quotes included; None when there is none."""
    try:
        raw = _model_value.decode(body).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _scan_for_model(body)
    size = len(memoryview(raw))
    if not size:
        return None
    # A Raw is a view into the buffer it was decoded from, so its address is its offset.
    start = int(np.frombuffer(raw, np.uint8).ctypes.data) - int(np.frombuffer(body, np.uint8).ctypes.data)
    if body[start : start + size] != bytes(raw):
        return _scan_for_model(body)
    return start, start + size


def _what_is_wrong(message: str) -> str:
    if "$.model" in message:
        return "model must be a string"
    return "request body must be a JSON object"


def _second_look(body: bytes | bytearray | memoryview) -> BodyFacts:
    if len(body) > SECOND_LOOK_BYTES:
        raise BodyError("request body is not valid JSON")
    try:
        parsed = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise BodyError("request body is not valid JSON") from None
    if not isinstance(parsed, dict):
        raise BodyError("request body must be a JSON object")
    model = parsed.get("model")
    if model is not None and not isinstance(model, str):
        raise BodyError("model must be a string")
    return BodyFacts(model, parsed.get("stream"))


def _scan_for_model(body: bytes) -> tuple[int, int] | None:
    """The span by looking at strings and brackets only; for bodies that the fast parser does not take."""
    depth, found, position = 0, None, 0
    while (token := _TOKEN.search(body, position)) is not None:
        position = token.end()
        text = token.group()
        if text in b"{[":
            depth += 1
        elif text in b"}]":
            depth -= 1
        elif depth == 1 and (colon := _COLON.match(body, position)) is not None:
            position = colon.end()
            if _is_model(text):
                found = _value_span(body, position)
                if found is not None:
                    position = found[1]
    return found


def _is_model(key: bytes) -> bool:
    if key == b'"model"':
        return True
    try:
        return b"\\" in key and json.loads(key) == "model"
    except ValueError:
        return False


def _value_span(body: bytes, start: int) -> tuple[int, int] | None:
    string = _TOKEN.match(body, start)
    if string is not None:
        return string.span() if string.group().startswith(b'"') else None
    end = _VALUE_END.search(body, start)
    return None if end is None else (start, end.start())

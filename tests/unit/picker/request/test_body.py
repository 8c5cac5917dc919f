"""What is read of a body, and the splice that renames a model: no other byte may change."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zerohop_picker.request import body as bodies
from zerohop_picker.request.body import BodyError, json_model_span, read_json, splice_model

JSON = "application/json"
_SPACE = st.text(" \t\r\n", max_size=2)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_NUMBER = st.sampled_from(["0", "-0.0", "1.0e2", "1E+2", "9007199254740993", "1e400", "123456789012345678901234567890"])


@st.composite
def _string(draw: st.DrawFn, text: str | None = None) -> str:
    """A JSON string of a text, with any legal way of writing its characters."""
    out = []
    for char in draw(_TEXT) if text is None else text:
        escaped = "".join(f"\\u{unit:04x}" for unit in _units(char))
        plain = char not in '"\\' and ord(char) >= 0x20
        out.append(draw(st.sampled_from([char, escaped] if plain else [escaped])))
    return '"' + "".join(out) + '"'


def _units(char: str) -> list[int]:
    data = char.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


@st.composite
def _value(draw: st.DrawFn, depth: int = 2) -> str:
    kinds = ["text", "number", "word"] + (["list", "map"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "text":
        return draw(_string())
    if kind == "number":
        return draw(_NUMBER)
    if kind == "word":
        return draw(st.sampled_from(["true", "false", "null", '"model"', '"\\"model\\":1"']))
    items = draw(st.lists(_value(depth - 1), max_size=3))
    if kind == "list":
        return "[" + ",".join(items) + "]"
    return "{" + ",".join(f"{draw(_string(draw(st.sampled_from(['model', 'x', '']))))}:{item}" for item in items) + "}"


@st.composite
def documents(draw: st.DrawFn) -> tuple[bytes, str, bytes]:
    """(body, its model, the same body under the model name "NEW")."""
    model = draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8))
    other_keys = _TEXT.filter(lambda text: text != "model")
    members = [f"{draw(_string(draw(other_keys)))}:{draw(_value())}" for _ in range(draw(st.integers(0, 4)))]
    earlier = [f'"model":{draw(_string())}'] if draw(st.booleans()) else []
    key = draw(_string("model"))
    before, after = draw(_SPACE), draw(_SPACE)
    at = draw(st.integers(0, len(members)))

    def written(value: str) -> bytes:
        mine = [*earlier, *members[:at], f"{before}{key}{after}:{before}{value}{after}", *members[at:]]
        return f"{before}{{{','.join(mine)}}}{after}".encode()

    return written(draw(_string(model))), model, written('"NEW"')


@settings(max_examples=60)
@given(documents())
def test_a_rewrite_changes_the_models_bytes_and_no_other(case: tuple[bytes, str, bytes]) -> None:
    body, model, expected = case
    assert read_json(body, model_required=True).model == model
    assert splice_model(body, JSON, "NEW") == expected


@settings(max_examples=60)
@given(documents(), st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
@example((b'{"model":"a"}', "a", b""), 'quote " back \\ slash \n \x00 \u2028 \U0001f600')
def test_any_new_name_is_read_back(case: tuple[bytes, str, bytes], name: str) -> None:
    spliced = splice_model(case[0], JSON, name)
    assert spliced is not None
    assert json.loads(spliced)["model"] == name
    assert read_json(spliced, model_required=True).model == name


@pytest.mark.parametrize(
    "body",
    [
        b'{"x":NaN, "model":"m"}',
        b'{"x":"\\ud800", "model":"m"}',
        b'\xef\xbb\xbf{"model":"m"}',
        b'{"model":"m","deep":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"x":NaN,"mod\\u0065l":"m","y":{"model":1},"z":["model",{"model":"q"}]}',
        b'{"x":Infinity,"model":"l","model" : "m" , "s":"\\"model\\":\\"x\\""}',
    ],
)
def test_what_model_servers_take_beyond_strict_json_is_taken_and_renamed(body: bytes) -> None:
    assert read_json(body, model_required=True).model == "m"
    spliced = splice_model(body, JSON, "nn")
    assert spliced is not None
    assert len(spliced) == len(body) + 1
    before, after = json.loads(body), json.loads(spliced)
    assert after.pop("model") == "nn"
    before.pop("model")
    assert repr(before) == repr(after)


def test_of_two_models_the_last_counts_as_it_does_for_every_common_parser() -> None:
    body = b'{"model":"first","model":"last"}'
    assert read_json(body, model_required=True).model == json.loads(body)["model"] == "last"
    assert splice_model(body, JSON, "new") == b'{"model":"first","model":"new"}'


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"model":"m"} x', "not valid JSON"),
        (b'{"model":"m",}', "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b'{"model":"m","a":' + b"[" * 100_000, "not valid JSON"),
        (b'{"x":NaN' + b" " * bodies.SECOND_LOOK_BYTES + b"}", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"NaN", "must be a JSON object"),
        (b'{"model":7}', "model must be a string"),
        (b'{"x":NaN,"model":7}', "model must be a string"),
        (b'{"model":{}}', "model must be a string"),
        (b'{"model":""}', "model must not be empty"),
        (b'{"Model":"m"}', "model not found"),
        (b'{"model":null}', "model not found"),
        (b'{"a":{"model":"m"}}', "model not found"),
    ],
)
def test_what_is_wrong_is_said_without_quoting(body: bytes, says: str) -> None:
    with pytest.raises(BodyError, match=says) as caught:
        read_json(body, model_required=True)
    assert len(str(caught.value)) < 60


@pytest.mark.parametrize(
    ("text", "stream"), [("true", True), ("false", False), ("null", False), ('"yes"', False), ("1", False)]
)
def test_only_true_is_streaming_and_nothing_else_is_refused(text: str, stream: bool) -> None:
    body = f'{{"model":"m","stream":{text}}}'.encode()
    assert (read_json(body, model_required=True).stream is True) is stream


@pytest.mark.parametrize("body", [b"{}", b'{"model":null}', b'{"a":{"model":"m"}}', b'["model","m"]', b"nothing"])
def test_there_may_be_nothing_to_rename(body: bytes) -> None:
    assert splice_model(body, JSON, "n") in (None, body.replace(b"null", b'"n"'))


@given(st.binary(max_size=300))
def test_no_body_raises_anything_but_a_body_error(body: bytes) -> None:
    for required in (True, False):
        try:
            facts = read_json(body, model_required=required)
        except BodyError:
            continue
        assert facts.model is None or isinstance(facts.model, str)
    json_model_span(body)
    bodies.model_of_beginning(body)


@settings(max_examples=60)
@given(documents(), st.integers(0, 400))
def test_the_model_of_a_beginning_is_whole_or_not_there(case: tuple[bytes, str, bytes], cut: int) -> None:
    body = case[0]
    assert bodies.model_of_beginning(body) == case[1]
    found = bodies.model_of_beginning(body[:cut])
    parsed: Any = json.loads(body, object_pairs_hook=lambda pairs: pairs, parse_float=lambda text: math.nan)
    assert found is None or found in [value for key, value in parsed if key == "model"]

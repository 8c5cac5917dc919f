"""Damaged bodies beside Python's own parser: the same model or a BodyError; a rename changes nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from support.fuzzing import damaged, play_for
from zerohop_picker.request import multipart
from zerohop_picker.request.body import BodyError, json_model_span, model_of_beginning, read_json, splice_model

JSON: tuple[bytes, ...] = (
    b'{"model":"m","messages":[{"role":"user","content":"\xc3\xa9 \\"model\\":\\"x\\""}],"n":9007199254740993}',
    b'{ "x": {"model": "inner", "y": [1.0e2, -0.0, {"model": 5}]} , "model" : "a/b\\\\" , "stream" : true }',
    b'{"mod\\u0065l":"\\ud83d\\ude00","prompt":[1,2,3],"n":null}',
    b'{"model":"a","model":"b","stream":false}',
    b'[{"model":"m"}]',
)
FORM = (
    b"--X\r\n" + b'Content-Disposition: form-data; name="file"; filename="model"\r\n\r\n' + bytes(range(256))
) + b'\r\n--X\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--X--\r\n'
FORM_TYPE = "multipart/form-data; boundary=X"


def reference(body: bytes) -> tuple[Any, bool]:
    """Return (the top-level model by Python's parser, whether it was a string every time it was named)."""
    models: list[Any] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        models[:] = [value for key, value in pairs if key == "model"]  # the outermost object comes last
        return dict(pairs)

    parsed = json.loads(body, object_pairs_hook=note)
    if not isinstance(parsed, dict):
        raise TypeError
    return parsed.get("model"), all(isinstance(model, str) for model in models)


def judge_json(body: bytes) -> None:
    try:
        model: Any = read_json(body, model_required=True).model
    except BodyError:
        model = None
    try:
        expected, plain = reference(body)
    except (ValueError, TypeError, RecursionError):
        expected, plain = None, False  # the fast parser may skip what it does not need, so it may take more
    if plain and expected:
        assert model == expected
    model_of_beginning(body)
    model_of_beginning(body[: len(body) // 2])
    if model is None:
        json_model_span(body)
        return
    renamed = splice_model(body, "application/json", 'n"ew')
    span = json_model_span(body)
    assert renamed is not None
    assert span is not None
    assert renamed == body[: span[0]] + b'"n\\"ew"' + body[span[1] :]
    assert read_json(renamed, model_required=True).model == 'n"ew'
    if plain:
        assert json.loads(renamed) == {**json.loads(body), "model": 'n"ew'}


def judge_form(body: bytes) -> None:
    multipart.read_model(body, FORM_TYPE)
    span = multipart.model_span(body, FORM_TYPE)
    renamed = splice_model(body, FORM_TYPE, "other")
    assert (span is None) == (renamed is None)
    if span is not None:
        assert 0 <= span[0] <= span[1] <= len(body)
        assert renamed == body[: span[0]] + b"other" + body[span[1] :]


def play(rng: random.Random) -> bytes:
    if rng.random() < 0.25:
        body = damaged(FORM, rng, others=(FORM,))
        judge_form(body)
    else:
        body = damaged(rng.choice(JSON), rng, others=JSON)
        judge_json(body)
    return body


@pytest.mark.fuzz
@pytest.mark.timeout(150)
def test_damaged_bodies() -> None:
    play_for(20, play)


def test_some_damaged_bodies() -> None:
    for seed in range(2_000):
        play(random.Random(seed))

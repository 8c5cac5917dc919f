"""The model part of a form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerohop_picker.request.body import splice_model
from zerohop_picker.request.multipart import read_model


def form(*parts: tuple[str, bytes], boundary: str = "X", preamble: bytes = b"") -> bytes:
    out = preamble
    for disposition, value in parts:
        out += f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + value + b"\r\n"
    return out + f"--{boundary}--\r\n".encode()


FILE = ('name="file"; filename="model"', bytes(range(256)))
MODEL = ('name="model"', b"whisper")


@pytest.mark.parametrize(
    ("body", "content_type", "model"),
    [
        (form(FILE, MODEL), "multipart/form-data; boundary=X", "whisper"),
        (form(MODEL, FILE), 'multipart/form-data; boundary="X"', "whisper"),
        (form(MODEL, FILE), "multipart/form-data; charset=utf-8; Boundary=X", "whisper"),
        (form(FILE, MODEL, preamble=b"preamble\r\n"), "multipart/form-data; boundary=X", "whisper"),
        (form(("name=model", b"m")), "multipart/form-data; boundary=X", "m"),
        (form(MODEL, ('name="model"', b"last")), "multipart/form-data; boundary=X", "last"),
        (form(("name=model-size", b"m")), "multipart/form-data; boundary=X", None),
        (form(('name="the_model"', b"m"), FILE), "multipart/form-data; boundary=X", None),
        (form(('name="model"', b"")), "multipart/form-data; boundary=X", None),
        (form(('name="model"', b"m" * 2000)), "multipart/form-data; boundary=X", None),
        (form(('name="model"', b"\xff")), "multipart/form-data; boundary=X", None),
        (form(('name="file"', b"\r\n--Xtra\r\n\r\nname"), MODEL), "multipart/form-data; boundary=X", "whisper"),
        (form(MODEL), "multipart/form-data; boundary=Y", None),
        (form(MODEL), "multipart/form-data", None),
        (form(MODEL)[:-8], "multipart/form-data; boundary=X", None),
        (b"", "multipart/form-data; boundary=X", None),
    ],
)
def test_model(body: bytes, content_type: str, model: str | None) -> None:
    assert read_model(body, content_type) == model
    spliced = splice_model(body, content_type, "new-name")
    if model is not None:
        assert spliced is not None
        assert read_model(spliced, content_type) == "new-name"
        head, _, tail = body.rpartition(f"\r\n\r\n{model}\r\n".encode())
        assert spliced == head + b"\r\n\r\nnew-name\r\n" + tail


@given(st.lists(st.tuples(st.sampled_from(['name="file"', 'name="model"']), st.binary(max_size=50)), max_size=4))
def test_any_parts(parts: list[tuple[str, bytes]]) -> None:
    body = form(*parts, boundary="b0undary")
    models = [value for name, value in parts if name == 'name="model"']
    try:
        expected = models[-1].decode() or None if models else None
    except UnicodeDecodeError:
        expected = None
    assert read_model(body, "multipart/form-data; boundary=b0undary") == expected


@given(st.binary(max_size=200), st.text(max_size=40))
def test_nothing_raises(body: bytes, content_type: str) -> None:
    read_model(body, "multipart/form-data; boundary=" + content_type)
    read_model(b"--X\r\n" + body, "multipart/form-data; boundary=X")


def test_a_large_part_is_not_searched_for_headers() -> None:
    noise = b'Content-Disposition: form-data; name="model"\r\n\r\nnot me'
    assert read_model(form(("name=file", noise)), "multipart/form-data; boundary=X") is None

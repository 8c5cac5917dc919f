from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerohop_process import strict
from zerohop_process.errors import ConfigError
from zerohop_process.strict import Fields, load_yaml

DOCUMENT = """\
scrapeInterval: 50ms
endpoints:
  - address: 10.0.0.1:8000
    weight: 2
  - address: 10.0.0.2:8000
"""


def test_values_are_taken_by_name_and_kind() -> None:
    fields = Fields(load_yaml(DOCUMENT, "a.yaml"))
    assert fields.take("scrapeInterval", strict.duration) == 50_000_000
    first, second = fields.take("endpoints", strict.list_of(Fields))
    assert str(first.take("address", strict.address)) == "10.0.0.1:8000"
    assert first.take("weight", float, 1.0) == 2.0
    assert second.take("weight", float, 1.0) == 1.0
    fields.finish()
    first.finish()


def test_an_unknown_field_names_its_line_and_the_nearest_known_one() -> None:
    fields = Fields(load_yaml("a: 1\nscrape_intervall: 50ms\n", "a.yaml"))
    fields.take("a", int)
    fields.take("scrapeInterval", strict.duration, None)
    with pytest.raises(
        ConfigError, match=r"^a\.yaml:2: unknown field 'scrape_intervall'; did you mean 'scrapeInterval'\?$"
    ):
        fields.finish()


def test_an_unknown_field_like_no_other_lists_what_is_known() -> None:
    fields = Fields(load_yaml("zzz: 1\n", "a.yaml"))
    fields.take("port", int, 1)
    with pytest.raises(ConfigError, match="known are port"):
        fields.finish()


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("x: 1.10", str, "expected text, found the number 1.1; put it in quotes"),
        ("x: yes", str, "found the boolean true"),
        ("x: many", int, "expected a whole number, found the text 'many'"),
        ("x: 1.5", int, "expected a whole number"),
        ("x: true", int, "expected a whole number, found the boolean true"),
        ("x: .nan", float, "expected a finite number"),
        ("x: .inf", float, "expected a finite number"),
        ("x: maybe", bool, "expected true or false"),
        ("x: {}", list, "expected a list, found a mapping"),
        ("x: []", dict, "expected a mapping, found a list"),
        ("x: 5", strict.duration, "is not a duration; write 5ms or 5s"),
        ("x: 5", strict.within(int, 6, 9), "5 is out of range; it must lie between 6 and 9"),
        ("x: hedder", strict.one_of("header", "metadata"), "did you mean 'header'"),
        ("x: 8000", strict.address, "expected text"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_its_line(text: str, kind: type, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^a\.yaml:2: x: ") as failed:
        Fields(load_yaml("# comment\n" + text, "a.yaml")).take("x", kind)
    assert message in str(failed.value)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^a\.yaml:1: field 'x' is missing"):
        Fields(load_yaml("y: 1", "a.yaml")).take("x", int)


def test_a_nested_place_is_a_path() -> None:
    items = Fields(load_yaml(DOCUMENT, "a.yaml")).take("endpoints", strict.list_of(Fields))
    with pytest.raises(ConfigError, match=r"^a\.yaml:4: endpoints\[0\]\.weight: expected text"):
        items[0].take("weight", str)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2", "a.yaml:2: field 'a' appears twice"),
        ("a: [1", "a.yaml:1: not valid YAML"),
        ("a: 1\n---\nb: 2", "a.yaml:3: a second document starts here"),
        ("a: !!python/object:os.system x", "a.yaml:1: the tag"),
        ("? [1, 2]\n: 3", "a.yaml:1: a field's name must be text"),
        ("a: \udcff", "a.yaml: not valid YAML"),
        ("a: \x00", "a.yaml: not valid YAML"),
    ],
)
def test_what_is_no_configuration_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as failed:
        load_yaml(text, "a.yaml")
    assert str(failed.value).startswith(message)


def test_a_document_that_unfolds_without_end_is_refused() -> None:
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
    )
    for text in (laughs, "a: &a [*a]", "[" * 100 + "]" * 100):
        with pytest.raises(ConfigError, match="nested too deeply or unfolds"):
            load_yaml(text, "a.yaml")


def test_what_yaml_would_reinterpret_stays_as_written() -> None:
    assert load_yaml("a: 1:30\nb: 2026-11-30\non: x\n8000: y", "a").plain() == {
        "a": "1:30", "b": "2026-11-30", "on": "x", "8000": "y",
    }  # fmt: skip


def test_an_empty_document_is_an_empty_mapping() -> None:
    for text in ("", "# only a comment\n", "---\n"):
        fields = Fields(load_yaml(text, "a.yaml"))
        assert fields.take("x", int, 7) == 7
        fields.finish()


@given(st.text())
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    refused = ""
    try:
        load_yaml(text, "a.yaml").plain()
    except ConfigError as error:
        refused = str(error)
    assert not refused or refused.startswith("a.yaml")

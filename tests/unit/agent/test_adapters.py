from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zerohop_agent.adapters import AdapterTable, words


def test_a_name_keeps_its_slot_while_it_comes_and_goes() -> None:
    table = AdapterTable()
    first = table.slots(["a"])
    other = table.slots(["b"])
    table.release(first)
    assert table.slots(["a"]) == first
    assert first != other
    assert table.names()[next(iter(first))] == "a"


def test_a_slot_in_use_is_never_given_to_another_name() -> None:
    table = AdapterTable(slots=2)
    table.slots(["a", "b"])
    assert table.slots(["c"]) == frozenset()
    assert table.refusals == 1
    assert set(table.names()) == {"a", "b"}


def test_the_slot_that_was_idle_longest_is_given_anew() -> None:
    table = AdapterTable(slots=2)
    a, b = table.slots(["a"]), table.slots(["b"])
    table.release(b)
    table.release(a)
    version = table.version
    assert table.slots(["c"]) == b
    assert table.version == version + 1
    assert table.slot_of("b") is None
    assert table.slots(["a"]) == a
    assert table.version == version + 1


def test_a_slot_is_held_until_its_last_use_is_given_back() -> None:
    table = AdapterTable(slots=1)
    first, second = table.slots(["a"]), table.slots(["a"])
    table.release(first)
    assert table.slots(["b"]) == frozenset()
    table.release(second)
    assert table.slots(["b"]) == first


def test_names_of_a_previous_agent_keep_their_bits() -> None:
    table = AdapterTable(names=["a", None, "c"])
    assert table.slots(["c"]) == {2}
    assert table.slots(["new"]) == {1}
    assert table.names()[:3] == ["a", "new", "c"]


def test_words() -> None:
    assert words([0, 63, 64, 127]) == (1 | 1 << 63, 1 | 1 << 63)


@given(st.lists(st.sets(st.sampled_from("abcdefgh"), max_size=4), max_size=30))
def test_bits_always_name_the_right_adapter(rounds: list[set[str]]) -> None:
    table = AdapterTable(slots=4)
    held: frozenset[int] = frozenset()
    for names in rounds:
        taken = table.slots(names)
        table.release(held)
        held = taken
        named = {table.names()[slot] for slot in held}
        assert named <= names
        if table.refusals == 0:
            assert named == names

"""Configuration that is read strictly: every value has a line number, and a field that nobody asked for is an error."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any, Final, TypeVar, cast, overload

from zerohop_process import address as addresses
from zerohop_process import units
from zerohop_process.errors import ConfigError
from zerohop_process.nodes import Node as Node
from zerohop_process.nodes import kind_of
from zerohop_process.nodes import load_yaml as load_yaml
from zerohop_process.nodes import load_yaml_all as load_yaml_all

T = TypeVar("T")
D = TypeVar("D")


class _Required(Enum):
    REQUIRED = 0


REQUIRED: Final = _Required.REQUIRED


class Fields:
    """Takes the members of one mapping by name; ``finish`` then refuses whatever nobody took."""

    def __init__(self, node: Node, source: str | None = None) -> None:
        """Read the mapping ``node``. Raises: ConfigError if it is no mapping."""
        self.node = node
        self._members = node.members()
        self._known: list[str] = []
        self._source = source or node.source

    @overload
    def take(self, name: str, kind: Callable[..., T]) -> T: ...
    @overload
    def take(self, name: str, kind: Callable[..., T], default: D) -> T | D: ...
    def take(self, name: str, kind: Callable[..., T], default: Any = REQUIRED) -> Any:
        """Return member ``name`` read as ``kind``, or ``default`` when it is absent or empty.

        ``kind`` is str, int, float, bool, list or dict (plain values), or any function from a Node to a value, such
        as the readers below.

        Raises: ConfigError when it is required and absent, or of another kind.
        """
        self._known.append(name)
        member = self._members.get(name)
        if member is None or member.value is None:
            if default is REQUIRED:
                raise (member or self.node).error(f"field {name!r} is missing")
            return default
        return _reader(kind)(member)

    def has(self, name: str) -> bool:
        """Return whether member ``name`` is present and not empty."""
        self._known.append(name)
        member = self._members.get(name)
        return member is not None and member.value is not None

    def place(self, name: str) -> str:
        """Return ``file:line: path`` of member ``name``, or of the mapping where it is absent."""
        return self._members.get(name, self.node).place

    def finish(self) -> None:
        """Raise ConfigError for the first member that was never asked for, naming the nearest known one."""
        for name, member in self._members.items():
            if name not in self._known:
                place = f"{self._source}:{member.line}"
                inside = f" in {self.node.path}" if self.node.path else ""
                raise ConfigError(f"{place}: unknown field {name!r}{inside}{did_you_mean(name, self._known)}")


def nearest(word: str, choices: Collection[str]) -> str | None:
    """Return the choice most like ``word``, ignoring case, hyphens and underscores; None when none is near."""
    folded = {_fold(choice): choice for choice in choices}
    found = difflib.get_close_matches(_fold(word), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def did_you_mean(word: str, choices: Collection[str]) -> str:
    """Return ``; did you mean 'x'?`` or a list of the choices, to end a message with."""
    guess = nearest(word, choices)
    if guess is not None:
        return f"; did you mean {guess!r}?"
    return f"; known are {', '.join(sorted(set(choices)))}" if choices else ""


# Readers: from a Node to a value.


def text(node: Node) -> str:
    """Return text. A bare number or boolean is refused: YAML has changed what was written (``1.10``, ``no``)."""
    if not isinstance(node.value, str):
        raise node.error(f"expected text, found {kind_of(node.value)}; put it in quotes")
    return node.value


def integer(node: Node) -> int:
    """Return a whole number."""
    if isinstance(node.value, float) and node.value.is_integer():
        return int(node.value)
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        raise node.error(f"expected a whole number, found {kind_of(node.value)}")
    return node.value


def number(node: Node) -> float:
    """Return a finite number."""
    if isinstance(node.value, bool) or not isinstance(node.value, int | float):
        raise node.error(f"expected a number, found {kind_of(node.value)}")
    value = float(node.value)
    if value != value or value in (float("inf"), float("-inf")):
        raise node.error("expected a finite number")
    return value


def boolean(node: Node) -> bool:
    """Return true or false."""
    if not isinstance(node.value, bool):
        raise node.error(f"expected true or false, found {kind_of(node.value)}")
    return node.value


def duration(node: Node) -> int:
    """Return a duration such as ``50ms`` in ns; a number without a unit is refused."""
    return units.duration_ns(str(node.plain()), place=node.place)


def size(node: Node) -> int:
    """Return a size such as ``16MiB`` in bytes."""
    return units.size_bytes(str(node.plain()), place=node.place)


def address(node: Node) -> addresses.Address:
    """Return a ``host:port``."""
    return addresses.Address.parse(text(node), node.place)


def listen(node: Node) -> addresses.Listen:
    """Return a ``unix:PATH`` or ``host:port``."""
    return addresses.Listen.parse(text(node), node.place)


def plain(node: Node) -> Any:
    """Return the value as it stands, of any kind."""
    return node.plain()


def list_of(kind: Callable[..., T]) -> Callable[[Node], list[T]]:
    """Return a reader of lists whose every element is read as ``kind``."""
    return lambda node: [_reader(kind)(item) for item in node.items()]


def map_of(kind: Callable[..., T]) -> Callable[[Node], dict[str, T]]:
    """Return a reader of mappings whose every value is read as ``kind``."""
    return lambda node: {name: _reader(kind)(member) for name, member in node.members().items()}


def one_of(*choices: str) -> Callable[[Node], str]:
    """Return a reader of text that must be one of ``choices``."""

    def read(node: Node) -> str:
        value = text(node)
        if value not in choices:
            guess = did_you_mean(value, choices) if nearest(value, choices) else ""
            raise node.error(f"{value!r} is not one of {', '.join(choices)}{guess}")
        return value

    return read


def within(kind: Callable[..., T], low: float, high: float) -> Callable[[Node], T]:
    """Return a reader of numbers read as ``kind`` that must lie in [low, high]."""

    def read(node: Node) -> T:
        value: Any = _reader(kind)(node)
        if not low <= value <= high:
            raise node.error(f"{node.plain()!r} is out of range; it must lie between {low:g} and {high:g}")
        return cast("T", value)

    return read


def _reader(kind: Callable[..., T]) -> Callable[[Node], T]:
    return _BUILTIN.get(kind, kind)


def _plain_list(node: Node) -> list[Any]:
    return [item.plain() for item in node.items()]


def _plain_dict(node: Node) -> dict[str, Any]:
    return {name: member.plain() for name, member in node.members().items()}


_BUILTIN: dict[Any, Callable[[Node], Any]] = {
    str: text, int: integer, float: number, bool: boolean, list: _plain_list, dict: _plain_dict,
}  # fmt: skip


def _fold(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")

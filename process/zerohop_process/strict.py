"""Configuration that is read strictly: every value has a line number, and a field that nobody asked for is an error."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar, cast, overload

import yaml

from zerohop_process import address as addresses
from zerohop_process import units
from zerohop_process.errors import ConfigError

T = TypeVar("T")
D = TypeVar("D")

_DEPTH_LIMIT = 64
_NODE_LIMIT = 200_000
_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp")
)


class _Required(Enum):
    REQUIRED = 0


REQUIRED: Final = _Required.REQUIRED


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a document: a dict of name to Node, a list of Nodes, or a plain str, int, float, bool or None."""

    value: dict[str, Node] | list[Node] | str | int | float | bool | None
    source: str
    line: int
    path: str = ""

    @property
    def place(self) -> str:
        """``file:line: path``, to stand in front of a message."""
        return f"{self.source}:{self.line}: {self.path}" if self.path else f"{self.source}:{self.line}"

    def error(self, message: str) -> ConfigError:
        """Return a ConfigError about this value."""
        return ConfigError(f"{self.place}: {message}")

    def plain(self) -> Any:
        """Return the value as ordinary dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {name: child.plain() for name, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def items(self) -> list[Node]:
        """Return the elements of a list. Raises: ConfigError if this is none."""
        if not isinstance(self.value, list):
            raise self.error(f"expected a list, found {_kind_of(self.value)}")
        return self.value

    def members(self) -> dict[str, Node]:
        """Return the members of a mapping; none for an empty value. Raises: ConfigError if this is no mapping."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.error(f"expected a mapping, found {_kind_of(self.value)}")
        return self.value


def load_yaml(text: str, source: str) -> Node:
    """Return the one document in ``text``; an empty text is a Node whose value is None.

    Raises: ConfigError for bad syntax, a duplicate or non-string key, a tag, or a document that unfolds to more than
    200,000 values.
    """
    documents = list(load_yaml_all(text, source))
    if not documents:
        return Node(None, source, 1)
    if len(documents) > 1:
        raise documents[1].error("a second document starts here; this file may hold only one")
    return documents[0]


def load_yaml_all(text: str, source: str) -> Iterator[Node]:
    """Yield each non-empty document of ``text``. Raises: as ``load_yaml``."""
    try:
        for root in yaml.compose_all(text, Loader=yaml.SafeLoader):
            if root is not None and not _is_empty(root):
                yield _Builder(source).node(root, "", 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{source}{line}: not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None


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
        raise node.error(f"expected text, found {_kind_of(node.value)}; put it in quotes")
    return node.value


def integer(node: Node) -> int:
    """Return a whole number."""
    if isinstance(node.value, float) and node.value.is_integer():
        return int(node.value)
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        raise node.error(f"expected a whole number, found {_kind_of(node.value)}")
    return node.value


def number(node: Node) -> float:
    """Return a finite number."""
    if isinstance(node.value, bool) or not isinstance(node.value, int | float):
        raise node.error(f"expected a number, found {_kind_of(node.value)}")
    value = float(node.value)
    if value != value or value in (float("inf"), float("-inf")):
        raise node.error("expected a finite number")
    return value


def boolean(node: Node) -> bool:
    """Return true or false."""
    if not isinstance(node.value, bool):
        raise node.error(f"expected true or false, found {_kind_of(node.value)}")
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


class _Builder:
    """Turns composed YAML into Nodes, within limits that a folded ("billion laughs") document cannot pass."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._count = 0
        self._scalars = yaml.SafeLoader("")

    def node(self, raw: yaml.Node, path: str, depth: int) -> Node:
        line = raw.start_mark.line + 1
        self._count += 1
        if depth > _DEPTH_LIMIT or self._count > _NODE_LIMIT:
            raise ConfigError(f"{self._source}:{line}: the document is nested too deeply or unfolds to too many values")
        if raw.tag not in _TAGS:
            raise ConfigError(f"{self._source}:{line}: the tag {raw.tag!r} is not supported; write plain values")
        if isinstance(raw, yaml.MappingNode):
            return Node(self._members(raw, path, depth), self._source, line, path)
        if isinstance(raw, yaml.SequenceNode):
            items = [self.node(child, f"{path}[{index}]", depth + 1) for index, child in enumerate(raw.value)]
            return Node(items, self._source, line, path)
        return Node(self._scalar(raw), self._source, line, path)

    def _members(self, raw: yaml.MappingNode, path: str, depth: int) -> dict[str, Node]:
        members: dict[str, Node] = {}
        for key, child in raw.value:
            line = key.start_mark.line + 1
            name = self._scalar(key) if isinstance(key, yaml.ScalarNode) else None
            if not isinstance(name, str):
                # `on:`, `8000:` and `null:` are not text to YAML; as a name they can only have been meant as written.
                name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None:
                raise ConfigError(f"{self._source}:{line}: a field's name must be text")
            if name in members:
                raise ConfigError(
                    f"{self._source}:{line}: field {name!r} appears twice (first in line {members[name].line})"
                )
            members[name] = self.node(child, f"{path}.{name}" if path else name, depth + 1)
        return members

    def _scalar(self, raw: yaml.Node) -> Any:
        kind = raw.tag.rpartition(":")[2]
        # YAML 1.1 reads 1:30 as ninety and 2026-01-01 as a date; nobody means that here.
        if kind in ("str", "timestamp") or (kind in ("int", "float") and ":" in raw.value):
            return raw.value
        try:
            return self._scalars.construct_object(raw)
        except (yaml.YAMLError, ValueError):
            raise ConfigError(f"{self._source}:{raw.start_mark.line + 1}: cannot read {raw.value!r}") from None


def _is_empty(root: yaml.Node) -> bool:
    return isinstance(root, yaml.ScalarNode) and root.tag == "tag:yaml.org,2002:null"


def _kind_of(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    return "a list" if isinstance(value, list) else "a mapping"


def _fold(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")

"""YAML as values that know their line, so that a message can name the place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from zerohop_process.errors import ConfigError

_DEPTH_LIMIT = 64
_NODE_LIMIT = 200_000
_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp")
)


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
            raise self.error(f"expected a list, found {kind_of(self.value)}")
        return self.value

    def members(self) -> dict[str, Node]:
        """Return the members of a mapping; none for an empty value. Raises: ConfigError if this is no mapping."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.error(f"expected a mapping, found {kind_of(self.value)}")
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


def kind_of(value: object) -> str:
    """Return what a value is, in words for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    return "a list" if isinstance(value, list) else "a mapping"


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

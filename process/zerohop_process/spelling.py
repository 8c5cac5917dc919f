"""Fields are named as flags are: `scrape-interval`, as on the command line, and `scrape_interval` are one field."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from zerohop_process.nodes import Node


def as_known(node: Node, known: Collection[str]) -> Node:
    """Return a mapping whose names are those of `known` wherever only hyphens and underscores differ.

    Raises: ConfigError when it is no mapping, or holds one field in both spellings.
    """
    spellings = {_folded(name): name for name in known}
    members: dict[str, Node] = {}
    for written, member in node.members().items():
        name = spellings.get(_folded(written), written)
        if name in members:
            raise member.error(f"the same field as in line {members[name].line}, spelled differently; keep one")
        members[name] = member
    return replace(node, value=members)


def _folded(name: str) -> str:
    return name.replace("-", "_")

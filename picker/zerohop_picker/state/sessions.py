"""Which endpoint a session belongs to: by a token that the client carries, or by an id that we remember."""

from __future__ import annotations

import base64
import binascii
from typing import Final, Protocol

from zerohop_picker.state.view import View

TOKEN_HEADER: Final = "x-session-token"  # noqa: S105 - a header's name
ID_HEADER: Final = "x-session-id"
DEFAULT_TTL_S: Final = 300.0


class Table(Protocol):
    """What is needed of ``zerohop_snapshot.sessions.SessionTable``: shared by the workers, bounded, with expiry."""

    def get(self, key: bytes, now_ns: int) -> tuple[int, int] | None: ...  # noqa: D102

    def put(self, key: bytes, row: int, generation: int, expires_ns: int) -> object: ...  # noqa: D102


class Sessions:
    """Bindings from a session to an endpoint's row."""

    def __init__(self, table: Table) -> None:
        """Keep the bindings in ``table``."""
        self._table = table

    def row(self, scope: str, session: str, view: View, now_ns: int) -> int | None:
        """Return the row that ``session`` is bound to; None when it is unbound, expired, or its endpoint is gone."""
        bound = self._table.get(_key(scope, session), now_ns)
        if bound is None:
            return None
        row, generation = bound
        if row >= view.rows or int(view.raw("generation")[row]) != generation:
            return None
        return row

    def bind(self, scope: str, session: str, row: int, generation: int, expires_ns: int) -> None:
        """Bind ``session`` to ``row`` until ``expires_ns``."""
        self._table.put(_key(scope, session), row, generation, expires_ns)


def _key(scope: str, session: str) -> bytes:
    # The length in front keeps ("a", "bc") apart from ("ab", "c").
    name = scope.encode("utf-8", "surrogateescape")
    return len(name).to_bytes(2, "little") + name + session.encode("utf-8", "surrogateescape")


def encode_token(name: str) -> bytes:
    """Return the token that names an endpoint: base64 of its ``namespace/name``."""
    return base64.b64encode(name.encode("utf-8", "surrogateescape"))


def decode_token(token: str) -> str | None:
    """Return the endpoint's name in a token; None for anything that is not one."""
    try:
        return base64.b64decode(token, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None

"""A pick's place in the in-flight counts, given back exactly once whatever happens to the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from zerohop_picker.scheduling_contract import Outcome


class Cell(Protocol):
    """What is needed of ``zerohop_snapshot.PickerCell``."""

    def start(self, row: int, generation: int, tokens: int, now_ns: int) -> None: ...  # noqa: D102

    def release_tokens(self, row: int, generation: int, tokens: int) -> None: ...  # noqa: D102

    def finish(self, row: int, generation: int, tokens: int = 0) -> None: ...  # noqa: D102


#: Finds (row, generation) of an ``ip:port``, None when it is not in the snapshot.
Locate = Callable[[str], tuple[int, int] | None]


class PickTicket:
    """Counts one request at one endpoint (and at its prefill endpoint, where there is one) until ``finish``."""

    __slots__ = ("_cell", "_extra", "_generation", "_locate", "_now", "_row", "_tokens")

    def __init__(
        self,
        cell: Cell,
        row: int,
        generation: int,
        tokens: int,
        now_ns: int,
        *,
        locate: Locate,
        now: Callable[[], int],
        extra: tuple[int, int] | None = None,
    ) -> None:
        """Count the pick. ``extra`` is (row, generation) of the prefill endpoint, which then carries the tokens."""
        self._cell: Cell | None = cell
        self._row = row
        self._generation = generation
        self._tokens = 0 if extra is not None else tokens
        self._locate = locate
        self._now = now
        self._extra = (*extra, tokens) if extra is not None else None
        cell.start(row, generation, self._tokens, now_ns)
        if self._extra is not None:
            cell.start(self._extra[0], self._extra[1], tokens, now_ns)

    def served(self, endpoint: str) -> None:
        """Move the count to the endpoint that really served, when it is another one."""
        cell = self._cell
        found = self._locate(endpoint) if cell is not None else None
        if cell is None or found is None or found == (self._row, self._generation):
            return
        cell.finish(self._row, self._generation, self._tokens)
        self._row, self._generation = found
        # A pick of its own: the endpoint's gauges may not show this request yet.
        cell.start(self._row, self._generation, self._tokens, self._now())

    def first_token(self) -> None:
        """Take the prompt's tokens out: its prefill is done."""
        cell = self._cell
        if cell is None:
            return
        if self._tokens:
            cell.release_tokens(self._row, self._generation, self._tokens)
            self._tokens = 0
        if self._extra is not None:
            cell.finish(*self._extra)
            self._extra = None

    def finish(self, outcome: Outcome) -> None:  # noqa: ARG002 - how it ended does not change the count
        """Take the request out; a second call changes nothing."""
        cell, self._cell = self._cell, None
        if cell is None:
            return
        cell.finish(self._row, self._generation, self._tokens)
        if self._extra is not None:
            cell.finish(*self._extra)
            self._extra = None

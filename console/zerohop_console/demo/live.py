"""The table that moves while a demo runs."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Literal, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from zerohop_console.demo.box import Server
from zerohop_console.demo.watch import Seen

# 80 columns with the borders
_SHARE_WIDTH = 12
_COLUMNS = (
    ("server", 9), ("now", 10), ("waits", 5), ("runs", 4), ("KV", 4), ("picks", 5), ("share", _SHARE_WIDTH), ("age", 6),
)  # fmt: skip


class Screen:
    """Shows phases and the endpoints; on something that is no terminal, a line per phase. `quiet` shows nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(stderr=quiet, quiet=quiet)
        self._moving = self._console.is_terminal and not quiet
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(40), MofNCompleteColumn(), console=self._console
        )
        self._task = self._progress.add_task("requests", total=None, visible=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._phase = ""

    def __enter__(self) -> Self:
        if self._moving:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._moving:
            self._live.stop()

    def phase(self, text: str) -> None:
        """Say what happens now."""
        self._phase = text
        if self._moving:
            self._live.update(Text(text), refresh=True)
        else:
            self._console.print(text)

    def show(self, servers: list[Server], seen: dict[str, Seen], done: int, total: int, rate: float) -> None:
        """Show the endpoints and the progress."""
        if not self._moving:
            return
        self._progress.update(self._task, completed=done, total=total, visible=True)
        self._live.update(Group(Text(self._phase), self._table(servers, seen), self._footer(rate)), refresh=True)

    def _footer(self, rate: float) -> RenderableType:
        return Group(self._progress, Text(f"{rate:.0f} requests/s"))

    def _table(self, servers: list[Server], seen: dict[str, Seen]) -> Table:
        table = Table()
        for heading, width in _COLUMNS:
            justify: Literal["left", "right"] = "left" if heading in ("server", "now", "share") else "right"
            table.add_column(heading, justify=justify, width=width, no_wrap=True)
        total = sum(endpoint.picks for endpoint in seen.values()) or 1
        for server in servers:
            endpoint = seen.get(server.name)
            if endpoint is None:
                table.add_row(server.name, "unknown")
                continue
            table.add_row(
                server.name,
                _state(server, endpoint),
                _number(endpoint.waiting),
                _number(endpoint.running),
                "-" if math.isnan(endpoint.kv_cache_usage) else f"{endpoint.kv_cache_usage:.0%}",
                str(endpoint.picks),
                "█" * round(_SHARE_WIDTH * endpoint.picks / total),
                "-" if endpoint.age_ms is None else f"{endpoint.age_ms:.0f} ms",
            )
        return table

    def print(self, what: RenderableType) -> None:
        """Print something that stays."""
        self._console.print(what)


def _state(server: Server, endpoint: Seen) -> str:
    if endpoint.draining:
        return "[yellow]draining[/]"
    if not endpoint.usable:
        return "[red]not usable[/]"
    return "[magenta]3x slower[/]" if server.role == "slow" else "[green]full speed[/]"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0f}"

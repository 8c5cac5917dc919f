"""Who reads the endpoints: one task per endpoint, kept apart from the others, and the engines' own cells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from zerohop_agent.endpoints import EndpointSpec
from zerohop_agent.signals import Signals, SourceError
from zerohop_process.address import Address
from zerohop_process.log import OncePerChange, get

_logger = get("agent.readers")
#: A reader that ended by an error of ours starts again after this.
_RESTART_S = 1.0


class Reader(Protocol):
    """Reads one endpoint until cancelled."""

    @property
    def engine(self) -> str | None:
        """The engine whose mapping is in use; None while unknown."""

    @property
    def interval_ns(self) -> int:
        """The interval in use now, after any back-off."""

    def relax(self, *, on: bool) -> None:
        """Read seldom, since the values come by another way; off: read now, then as often as ever."""

    async def run(self) -> None:
        """Read again and again."""


OnSignals = Callable[[EndpointSpec, Signals, int, int], None]
OnFailure = Callable[[EndpointSpec, SourceError], None]
MakeReader = Callable[[EndpointSpec, OnSignals, OnFailure], Reader]


class PluginReading(Protocol):
    """What an engine wrote into its own cell."""

    @property
    def signals(self) -> Signals:
        """Its state, ranks combined."""

    @property
    def observed_ns(self) -> int:
        """Moment that the state is of."""


class Cells(Protocol):
    """The engines' cells on this node."""

    def refresh(self, now_ns: int) -> None:
        """Look for new and dead cells (seldom) and for new values."""

    def reading(self, address: Address) -> PluginReading | None:
        """The newest values for the server at `address`; None without a live cell."""


class Readers:
    """The readers of all endpoints, by key."""

    def __init__(self, make: MakeReader, on_signals: OnSignals, on_failure: OnFailure) -> None:
        self._make = make
        self._on_signals = on_signals
        self._on_failure = on_failure
        self._running: dict[str, tuple[Reader, asyncio.Task[None]]] = {}
        self._once = OncePerChange()

    def start(self, spec: EndpointSpec) -> None:
        """Read the endpoint until `stop`."""
        reader = self._make(spec, self._on_signals, self._on_failure)
        task = asyncio.get_running_loop().create_task(self._follow(reader, spec), name=f"reader-{spec.address}")
        self._running[spec.key] = (reader, task)

    def stop(self, key: str) -> None:
        """Stop reading; nothing happens when it was not read."""
        pair = self._running.pop(key, None)
        if pair is not None:
            pair[1].cancel()
        self._once.forget(key)

    def of(self, key: str) -> Reader:
        """The reader of an endpoint. Raises: KeyError."""
        return self._running[key][0]

    async def close(self) -> None:
        """Stop all and wait for their ends."""
        tasks = [task for _, task in self._running.values()]
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, reader: Reader, spec: EndpointSpec) -> None:
        while True:
            try:
                await reader.run()
            except Exception as failure:  # logged: one reader must not end the others
                self._once.log(
                    _logger, "error", spec.key, repr(failure), "a reader failed; it starts again",
                    address=spec.address, error=repr(failure),
                )  # fmt: skip
            await asyncio.sleep(_RESTART_S)

"""What a model server says beside its metrics page: which models it serves, and whether its engine is dead."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from zerohop_agent.modelserver.client import Client
from zerohop_agent.modelserver.served import ServedModels, parse_models
from zerohop_agent.modelserver.settings import ModelServerSettings
from zerohop_agent.signals import SourceError
from zerohop_process.address import Address
from zerohop_process.log import OncePerChange, get
from zerohop_snapshot.layout import UnhealthyReason

__all__ = ["BesidePage"]

_logger = get("agent.modelserver")

#: A server that did not answer in time is asked again after this; so is one whose engine may be dead.
_AGAIN_S = 1.0
_DEAD_STATUS = 503
#: A proxy on the way may answer 503 once.
_DEAD_ANSWERS = 2
_NO_ANSWER = frozenset({UnhealthyReason.TIMEOUT, UnhealthyReason.RESET, UnhealthyReason.REFUSED})


class BesidePage:
    """Asks one server, slowly. `connect` makes a client for its API; a connection is closed after each question, since
    servers drop idle ones after a few seconds anyway."""

    def __init__(self, address: Address, settings: ModelServerSettings, connect: Callable[[], Client]) -> None:
        self._address = address
        self._settings = settings
        self._connect = connect
        self._due = asyncio.Event()
        self._once = OncePerChange()
        self._dead_answers = 0
        #: The served models as last told; None: not told.
        self.models: ServedModels | None = None

    @property
    def dead(self) -> bool:
        """True while the server says that its engine is dead."""
        return self._dead_answers >= _DEAD_ANSWERS

    def ask_again(self, *, forget: bool) -> None:
        """Ask for the models now. `forget`: another process answers, of which nothing is known."""
        if forget:
            self.models, self._dead_answers = None, 0
        self._due.set()

    async def follow_models(self) -> None:
        """Keep `models` up to date until cancelled: now and then, and when `ask_again` is called."""
        while True:
            await self._due.wait()
            self._due.clear()
            answered = await self._read_models()
            wait_s = self._settings.models_interval_ns / 1e9 * random.uniform(0.9, 1.1)
            try:
                async with asyncio.timeout(wait_s if answered else min(wait_s, _AGAIN_S)):
                    await self._due.wait()
            except TimeoutError:
                self._due.set()

    async def follow_health(self, path: Callable[[], str]) -> None:
        """Keep `dead` up to date until cancelled. `path()` is the one to ask; empty: this server has none."""
        while True:
            wait_s = self._settings.health_interval_ns / 1e9 * random.uniform(0.9, 1.1)
            await asyncio.sleep(min(wait_s, _AGAIN_S) if self._dead_answers else wait_s)
            where = path()
            self._dead_answers = self._dead_answers + 1 if where and await self._status(where) == _DEAD_STATUS else 0

    async def _status(self, path: str) -> int | None:
        client = self._connect()
        try:
            return (await client.get(path, accept="*/*", timeout_s=self._timeout_s)).response.status
        except SourceError:
            return None
        finally:
            client.close()

    async def _read_models(self) -> bool:
        """Read them; returns False when there was no answer, and then the old ones stand."""
        client = self._connect()
        try:
            path = self._settings.models_path
            fetched = await client.get(path, accept="application/json", timeout_s=self._timeout_s)
            if fetched.response.status != 200:
                raise SourceError(UnhealthyReason.HTTP_STATUS, f"GET {path} answers {fetched.response.status}")
            self.models = parse_models(fetched.response.body)
        except SourceError as error:
            if error.reason in _NO_ANSWER:
                return False
            # A server that stopped telling its models is not known to serve the old ones.
            self.models = None
            text = "the served models are unknown"
            self._once.log(
                _logger, "info", "models", error.detail, text, endpoint=self._address, detail=error.detail
            )  # fmt: skip
        else:
            self._once.changed("models", None)
        finally:
            client.close()
        return True

    @property
    def _timeout_s(self) -> float:
        return self._settings.timeout_ns / 1e9

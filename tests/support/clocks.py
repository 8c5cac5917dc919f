"""A clock that a test moves by hand."""

from __future__ import annotations

import asyncio


class ManualClock:
    """Seconds that grow only when the test says so; sleepers wake in the order of their deadlines."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_770_000_000.0 + self.now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, waiting))
        try:
            await waiting
        finally:
            self._sleepers = [entry for entry in self._sleepers if entry[1] is not waiting]

    @property
    def sleepers(self) -> int:
        """How many wait now."""
        return len(self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Moves time to `seconds` from now, stopping at each deadline on the way."""
        end = self.now + seconds
        while True:
            due = [deadline for deadline, waiting in self._sleepers if deadline <= end and not waiting.done()]
            if not due:
                break
            self.now = max(self.now, min(due))
            for deadline, waiting in self._sleepers:
                if deadline <= self.now and not waiting.done():
                    waiting.set_result(None)
            for _ in range(5):
                await asyncio.sleep(0)
        self.now = end
        await asyncio.sleep(0)

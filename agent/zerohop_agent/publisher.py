"""When the snapshot is published: soon after a change, never more often than the interval, and as a heartbeat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from zerohop_process.log import OncePerChange, get
from zerohop_snapshot.writer import SnapshotWriter

_logger = get("agent.publisher")

#: A publish at least this often, so that a picker can tell an agent that has nothing to say from one that hangs.
HEARTBEAT_NS = 50_000_000
#: A change waits so long for its neighbours: readers wake together, and their answers come within a millisecond or two.
COALESCE_NS = 2_000_000


class Publisher:
    """Publishes on the running event loop.

    `prepare(now_ns)` brings derived values up to date and returns whether anything changed. Between publishes nothing
    runs: a timer stands at the heartbeat, and `touch` moves it forward. With `polling()` true (an engine writes its own
    cell, and nobody tells us when) the timer stands at the interval; a look that finds nothing new publishes nothing.
    """

    def __init__(
        self,
        writer: SnapshotWriter,
        prepare: Callable[[int], bool],
        interval_ns: int,
        *,
        polling: Callable[[], bool] = lambda: False,
    ) -> None:
        self._writer = writer
        self._prepare = prepare
        self._polling = polling
        self.interval_ns = interval_ns
        self._heartbeat_ns = max(interval_ns, HEARTBEAT_NS)
        self._coalesce_ns = min(interval_ns // 2, COALESCE_NS)
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._last_ns = 0
        self._published_ns = 0
        self._dirty = True
        self._stopped = True
        self.publishes = 0
        self.failures = 0
        self._once = OncePerChange()
        #: Seconds that the last publish took, and by how many the loop was late for it.
        self.publish_seconds = 0.0
        self.lag_seconds = 0.0
        self._lag_seconds_max = 0.0

    def start(self) -> None:
        """Publish now and go on until `stop`."""
        self._stopped = False
        self._due_ns = time.monotonic_ns()
        self._publish()

    def stop(self) -> None:
        """Publish one last time and no more."""
        if self._stopped:
            return
        self._cancel()
        self._stopped = True
        self._prepare(time.monotonic_ns())
        self._writer.publish()

    def touch(self) -> None:
        """Something has changed: publish as soon as the interval allows."""
        self._dirty = True
        if self._stopped:
            return
        due_ns = max(self._last_ns + self.interval_ns, time.monotonic_ns() + self._coalesce_ns)
        if due_ns < self._due_ns:
            self._schedule(due_ns)

    def take_lag_max(self) -> float:
        """The greatest lag since the last call, seconds."""
        lag, self._lag_seconds_max = self._lag_seconds_max, 0.0
        return lag

    def is_alive(self, within_ns: int = 5_000_000_000) -> bool:
        """True while publishes happen; may be called from any thread."""
        return not self._stopped and time.monotonic_ns() - self._published_ns < within_ns

    def _publish(self) -> None:
        self._timer = None
        now_ns = time.monotonic_ns()
        self.lag_seconds = max(0.0, (now_ns - self._due_ns) / 1e9)
        self._lag_seconds_max = max(self._lag_seconds_max, self.lag_seconds)
        # Set before the write: a `touch` out of `prepare` must count from this publish.
        self._last_ns = now_ns
        self._due_ns = now_ns
        dirty, self._dirty = self._dirty, False
        try:
            changed = self._prepare(now_ns)
            if dirty or changed or now_ns - self._published_ns >= self._heartbeat_ns:
                self._writer.publish()
                self._published_ns = now_ns
                self.publishes += 1
                self.publish_seconds = (time.monotonic_ns() - now_ns) / 1e9
            self._once.changed("publish", "")
        except Exception as failure:  # a fault of ours must not end the publishing; `/healthz` and the age tell of it
            self.failures += 1
            self._once.log(_logger, "error", "publish", repr(failure), "a publish failed", error=repr(failure))
        # What `prepare` changed by itself is in this publish; it must not call for another one.
        self._dirty = False
        self._schedule(now_ns + (self.interval_ns if self._polling() else self._heartbeat_ns))

    def _schedule(self, due_ns: int) -> None:
        self._cancel()
        self._due_ns = due_ns
        delay_s = max(0, due_ns - time.monotonic_ns()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._publish)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

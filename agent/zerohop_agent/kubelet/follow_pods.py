"""All pods of this node as they are now, through restarts of the kubelet and lost events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from pathlib import Path

from zerohop_agent.kubelet.channel import KubeletError
from zerohop_agent.kubelet.pods import Pod
from zerohop_agent.kubelet.pods_api import InitialListDone, PodGone, PodsClient


class PodTable:
    """The pods known now, fed by lists and events that may cross each other.

    A list takes a moment to arrive, and events may come meanwhile: what an event said after the list was asked for
    wins.
    """

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._moved: dict[str, int] = {}
        self._clock = 0

    @property
    def pods(self) -> Mapping[str, Pod]:
        """By UID."""
        return self._pods

    def mark(self) -> int:
        """A moment, for `listed`: take it before asking for the list."""
        self._clock += 1
        return self._clock

    def seen(self, pod: Pod) -> bool:
        """Note that the pod is there; True when that changed something."""
        self._moved[pod.uid] = self.mark()
        changed = self._pods.get(pod.uid) != pod
        self._pods[pod.uid] = pod
        return changed

    def gone(self, uid: str) -> bool:
        """Note that the pod is gone; True when it was known."""
        self._moved[uid] = self.mark()
        return self._pods.pop(uid, None) is not None

    def listed(self, pods: Iterable[Pod], asked: int) -> bool:
        """Take a whole list that was asked for at `asked`; True when that changed something."""
        before = dict(self._pods)
        listed = {pod.uid: pod for pod in pods}
        for uid in list(self._pods):
            if uid not in listed and self._moved.get(uid, 0) < asked:
                del self._pods[uid]
        for uid, pod in listed.items():
            if self._moved.get(uid, 0) < asked:
                self._pods[uid] = pod
        self._moved = {uid: moment for uid, moment in self._moved.items() if moment >= asked}
        return self._pods != before


async def follow_pods(
    socket: Path,
    *,
    relist_s: float = 60.0,
    retry_s: float = 0.5,
    max_retry_s: float = 30.0,
    on_error: Callable[[KubeletError | None], None] | None = None,
) -> AsyncGenerator[tuple[Pod, ...], None]:
    """All pods of the node: once at the start, then at each change, for ever.

    Keeps what it knows while the kubelet is away (it says so through `on_error`, with None once it is back), tries
    again with growing pauses, and compares with a fresh list every `relist_s`, so that a lost event is not lost
    for good.
    """
    table = PodTable()
    pause_s = retry_s
    first = True
    while True:
        client = PodsClient(socket)
        try:
            async for changed in _follow_once(client, table, relist_s):
                pause_s = retry_s
                if on_error is not None:
                    on_error(None)
                if changed or first:
                    first = False
                    yield tuple(table.pods.values())
        except KubeletError as error:
            if on_error is not None:
                on_error(error)
        finally:
            await client.close()
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s = min(pause_s * 2, max_retry_s)


async def _follow_once(client: PodsClient, table: PodTable, relist_s: float) -> AsyncGenerator[bool, None]:
    """One watch with lists beside it; yields whether the table changed."""
    asked = table.mark()
    yield table.listed(await client.list(), asked)
    started = table.mark()
    initial: dict[str, Pod] = {}
    events = client.watch()
    next_event = asyncio.ensure_future(anext(events))
    loop = asyncio.get_running_loop()
    list_due = loop.time() + relist_s
    try:
        while True:
            done, _ = await asyncio.wait({next_event}, timeout=max(0.0, list_due - loop.time()))
            if loop.time() >= list_due:
                list_due = loop.time() + relist_s
                asked = table.mark()
                yield table.listed(await client.list(), asked)
            if not done:
                continue
            try:
                happening = next_event.result()
            except StopAsyncIteration:
                return
            next_event = asyncio.ensure_future(anext(events))
            if isinstance(happening, InitialListDone):
                yield table.listed(initial.values(), started)
            elif isinstance(happening, PodGone):
                initial.pop(happening.uid, None)
                yield table.gone(happening.uid)
            else:
                initial[happening.pod.uid] = happening.pod
                yield table.seen(happening.pod)
    finally:
        next_event.cancel()
        await asyncio.gather(next_event, return_exceptions=True)
        await events.aclose()

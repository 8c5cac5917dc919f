"""Lists and watches one resource for ever, and keeps what the server has in `objects`.

Loop: get the state (a streaming list where the server can, a plain list where it cannot), then watch from its version;
any doubt ends in getting the state again. What each kind of trouble does here; how long it makes us wait is in
`retries`:

| trouble | what happens |
|---|---|
| 410 as a status, or as an ERROR event | the version is dropped, the state is fetched again at once |
| any other ERROR event | back off, then watch on from the last good version |
| a 200 that ends at once, empty (kubernetes#104171) | a failure: back off; the third in a row fetches the state again |
| silence past the server's own timeout (half-open connection) | the connection is given up |
| a line that is cut | it is not looked at, and its version is not used |
| refused, reset, 429, 5xx | back off; `objects` stays as it is, its age grows |
| 401 | the token file is read for each request, so the next try has the new one |
| 404 | the resource is gone: `gone` is reported, the caller decides |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from zerohop_agent.discovery import watch_events
from zerohop_agent.discovery.client import ApiClient, ApiStatus, ApiUnreachable, status_from_object
from zerohop_agent.discovery.clock import Clock
from zerohop_agent.discovery.resources import Resource
from zerohop_agent.discovery.retries import Retries
from zerohop_agent.discovery.settings import DiscoverySettings
from zerohop_agent.discovery.source_state import Counters

T = TypeVar("T")

_PAGE_OBJECTS = 500
_EMPTY_WATCHES_BEFORE_LIST = 3


class ResourceGone(Exception):
    """The server has no such resource (any more)."""


@dataclass(slots=True)
class Reflector(Generic[T]):
    """One resource, in one namespace or in all.

    `decode` makes what is kept of an object, or None for an object that is not wanted; it must not raise for any
    object. `on_change` is called after `objects` changed, in the same turn of the loop.
    """

    resource: Resource
    client: ApiClient
    settings: DiscoverySettings
    clock: Clock
    decode: Callable[[dict[str, Any]], T | None]
    on_change: Callable[[], None]
    namespace: str | None = None
    selectors: Mapping[str, str] = field(default_factory=dict)
    #: False: where the server has no streaming list, the first state comes as the events of a watch from version 0,
    #: and the first plain list is the periodic one. Keeps a roll of a DaemonSet from being many lists per node.
    list_first: bool = True
    objects: dict[str, T] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    #: Monotonic second of the last answer that shows that `objects` is what the server has; None: never.
    synced_at: float | None = None
    retries: Retries = field(init=False)
    _version: str | None = None
    _listed_at: float = 0.0
    _relist_after_s: float = 0.0
    _empty_watches: int = 0
    _can_stream: bool = True
    _random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.retries = Retries(self.resource, self.namespace, self.settings, self.clock, self.counters, self.on_change)

    @property
    def trouble(self) -> str | None:
        """One sentence while something is wrong."""
        return self.retries.trouble

    @property
    def settled(self) -> bool:
        """True once it is known what can be had: the objects, or that there is no permission to read them."""
        return self.synced_at is not None or self.denied

    @property
    def denied(self) -> bool:
        """True while the server refuses to let us read this, and has done so more than once."""
        return self.retries.denied

    async def run(self) -> None:
        """Reflects until cancelled.

        Raises: ResourceGone when the server answers 404.
        """
        await self.clock.sleep(self._random.uniform(0, self.settings.start_jitter_s))
        while True:
            try:
                await self._state_and_watch()
            except ApiStatus as error:
                if error.expired:
                    self._version = None
                    await self.retries.expired()
                elif error.code == 404:
                    raise ResourceGone(str(self.resource)) from error
                else:
                    await self.retries.refused(error)
            except ApiUnreachable as error:
                await self.retries.failed(str(error))

    async def _state_and_watch(self) -> None:
        if self._version is None or self.clock.monotonic() - self._listed_at >= self._relist_after_s:
            if self._can_stream:
                await self._streaming_list()
                return
            if self.list_first or self.counters.lists or self.counters.events:
                await self._list()
            else:
                self._version, self._listed_at = "0", self.clock.monotonic()
                self._relist_after_s = self.settings.relist_interval_s * self._random.uniform(0.5, 1.0)
        await self._watch()

    # Getting the state.

    async def _list(self) -> None:
        """Replaces `objects` with a plain list, page by page."""
        self.counters.lists += 1
        found: dict[str, T] = {}
        params = dict(self.selectors) | {"limit": str(_PAGE_OBJECTS)}
        if self.synced_at is None and self.retries.failures == 0 and self.counters.expired == 0:
            # The server's cache will do: a DaemonSet roll must not become one read of etcd per node.
            params |= {"resourceVersion": "0"}
        while True:
            answer = await self.client.request("GET", self.resource.path(self.namespace), params=params)
            if not isinstance(answer, dict) or not isinstance(answer.get("items"), list | None):
                raise ApiUnreachable(f"the list of {self.resource} has no items")
            for item in answer.get("items") or []:
                self._keep(found, item)
            metadata = answer.get("metadata") or {}
            token = metadata.get("continue")
            if not token:
                break
            params = dict(self.selectors) | {"limit": str(_PAGE_OBJECTS), "continue": str(token)}
        self._replace(found, str(metadata.get("resourceVersion") or "") or None)

    async def _streaming_list(self) -> None:
        """Gets the state as the first events of a watch, and goes on watching on the same connection.

        A server without that feature answers 4xx; it is asked for plain lists from then on.
        """
        found: dict[str, T] | None = {}
        params = self._watch_params() | {
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
        }
        self.counters.streaming_lists += 1
        try:
            async with self._open(params) as events:
                async for item in events:
                    if found is None:
                        self._apply(item)
                        continue
                    kind, body = watch_events.parts(item)
                    if kind == "BOOKMARK":
                        if watch_events.ends_initial_list(body):
                            self._replace(found, watch_events.version_of(body))
                            found = None
                    elif kind == "ERROR":
                        raise status_from_object(body, 500)
                    else:
                        self._keep(found, body)
        except ApiStatus as error:
            if error.code in (400, 422) and found is not None:
                self._can_stream = False
                return
            raise
        if found is not None:
            # Ended before the state was whole: an older server ignored the parameter.
            self._can_stream = False

    # Watching.

    async def _watch(self) -> None:
        params = self._watch_params() | {"resourceVersion": self._version or "0"}
        before = self.counters.events
        started = self.clock.monotonic()
        async with self._open(params) as events:
            async for item in events:
                self._apply(item)
        if self.clock.monotonic() - started >= 1.0:
            return
        if self.counters.events > before:
            await self.clock.sleep(self.settings.backoff_first_s * self._random.uniform(0.5, 1.0))
        else:
            self._empty_watches += 1
            if self._empty_watches >= _EMPTY_WATCHES_BEFORE_LIST:
                self._empty_watches = 0
                self._version = None
            await self.retries.failed("a watch ended at once and without an event")

    def _watch_params(self) -> dict[str, str]:
        # Watches that all started together should not all end together.
        seconds = self.settings.watch_timeout_s * self._random.uniform(0.8, 1.0)
        return dict(self.selectors) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(seconds))),
        }

    def _open(self, params: Mapping[str, str]) -> Any:
        self.counters.watches += 1
        silence_s = float(params["timeoutSeconds"]) + self.settings.watch_grace_s
        return self.client.stream(self.resource.path(self.namespace), params, silence_s)

    def _apply(self, item: dict[str, Any]) -> None:
        """One event of a watch."""
        kind, body = watch_events.parts(item)
        if kind == "ERROR":
            raise status_from_object(body, 500)
        self.counters.events += 1
        self.synced_at = self.clock.monotonic()
        self.retries.saw_event()
        self._empty_watches = 0
        if kind == "BOOKMARK":
            self._version = watch_events.version_of(body) or self._version
            return
        key = watch_events.key_of(body)
        if key is None or kind not in ("ADDED", "MODIFIED", "DELETED"):
            return
        kept = None if kind == "DELETED" else self.decode(body)
        before = self.objects.get(key)
        if kept is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = kept
        self._version = watch_events.version_of(body) or self._version
        if kept != before:
            self.on_change()

    # Bookkeeping.

    def _keep(self, found: dict[str, T], item: Any) -> None:
        key = watch_events.key_of(item)
        if key is not None and (kept := self.decode(item)) is not None:
            found[key] = kept

    def _replace(self, found: dict[str, T], version: str | None) -> None:
        first = self.synced_at is None
        self._version = version
        self._listed_at = self.synced_at = self.clock.monotonic()
        self._relist_after_s = self.settings.relist_interval_s * self._random.uniform(0.8, 1.2)
        self.retries.went_well()
        changed = found != self.objects
        self.objects.clear()
        self.objects.update(found)
        if changed or first:
            self.on_change()

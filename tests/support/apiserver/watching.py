"""A watch from its request to its end: the state if that was asked for, then every change that the request selects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from support.apiserver import wire
from support.apiserver.asked import Selection
from support.apiserver.store import Watch
from support.apiserver.trouble import TroubledStore


async def serve(
    store: TroubledStore, writer: asyncio.StreamWriter, selection: Selection, *, streaming_lists: bool
) -> bool:
    """Answers a watch; False where its connection is of no more use."""
    params = selection.params
    initial = params.get("sendInitialEvents") == "true"
    if initial and not streaming_lists:
        message = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
        return wire.answer(writer, 422, wire.status(422, "Invalid", message))
    since = params.get("resourceVersion", "")
    gone = _expired(store, since)
    if gone is not None and not store.expire_as_event:
        return wire.answer(writer, 410, gone)
    wire.start_stream(writer)
    if gone is not None:
        wire.event(writer, "ERROR", gone)
        return wire.end(writer)
    if store.empty_watches:
        store.empty_watches -= 1
        return wire.end(writer)
    sent = store.version
    if initial or since in ("", "0"):
        for body in store.selected(selection):
            wire.event(writer, "ADDED", body)
        if initial:
            _bookmark(writer, selection, sent, {"k8s.io/initial-events-end": "true"})
    else:
        sent = int(since)
        if params.get("allowWatchBookmarks") == "true":
            _bookmark(writer, selection, sent, {})
    watch = Watch(writer)
    store.watches.add(watch)
    deadline = asyncio.get_running_loop().time() + float(params.get("timeoutSeconds", 3600))
    try:
        return await _feed(store, watch, selection, sent, deadline)
    finally:
        store.watches.discard(watch)


async def _feed(store: TroubledStore, watch: Watch, selection: Selection, sent: int, deadline: float) -> bool:
    """Sends what comes after version `sent`, until `deadline` or until the watch is cut."""
    visible = {body["metadata"]["uid"] for body in store.selected(selection)}
    while True:
        for change in [change for change in store.changes if change.version > sent]:
            if store.muted:
                break
            sent = change.version
            if change.resource != selection.resource:
                continue
            selected = selection.has(change.resource, change.body)
            uid = change.body["metadata"]["uid"]
            # An object that leaves the selection is deleted as far as this watch can see.
            kind = change.kind if selected else "DELETED" if uid in visible else None
            visible = visible | {uid} if selected else visible - {uid}
            if kind is not None:
                wire.event(watch.writer, kind, change.body)
        if watch.cut:
            wire.chunk(watch.writer, b'{"type":"ADDED","object":{"metadata":{"na')
            await watch.writer.drain()
            return False
        await watch.writer.drain()
        watch.wake.clear()
        try:
            async with asyncio.timeout_at(deadline):
                await watch.wake.wait()
        except TimeoutError:
            if not store.muted:
                return wire.end(watch.writer)
            deadline += 3600


def _expired(store: TroubledStore, since: str) -> dict[str, Any] | None:
    """What a client hears that comes with a version from before the history."""
    if since in ("", "0") or int(since) >= store.oldest:
        return None
    return wire.status(410, "Expired", f"too old resource version: {since} ({store.oldest})")


def _bookmark(writer: asyncio.StreamWriter, selection: Selection, version: int, annotations: Mapping[str, str]) -> None:
    metadata = {"resourceVersion": str(version), "annotations": dict(annotations)}
    wire.event(writer, "BOOKMARK", {"kind": selection.resource.kind, "metadata": metadata})

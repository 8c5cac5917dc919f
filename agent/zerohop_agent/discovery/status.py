"""Writes the conditions of InferenceModels, from the one agent that a Lease elects.

Nothing else depends on it: without permission, or without models, every other part of discovery works. An object is
written only when its condition would change, and after a failure not again before a pause: never a hot loop.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from zerohop_agent.discovery.client import ApiClient, ApiStatus, ApiUnreachable
from zerohop_agent.discovery.clock import Clock
from zerohop_agent.discovery.customs import Custom
from zerohop_agent.discovery.lease import Lease
from zerohop_agent.discovery.verdicts import Verdict, conditions_with
from zerohop_process import log
from zerohop_process.log import OncePerChange

_CONFLICT_TRIES = 5
_NO_PERMISSION_PAUSE_S = 300.0
_FAILURE_PAUSE_S = 30.0

_log = log.get("discovery")


@dataclass(slots=True)
class StatusWriter:
    """`wanted` gives each model that exists and what is to be said about it."""

    client: ApiClient
    clock: Clock
    lease: Lease
    wanted: Callable[[], Iterable[tuple[Custom, Verdict]]]
    #: How often to look for the first model while there is none.
    idle_pause_s: float = 5.0
    writes: int = 0
    conflicts: int = 0
    _not_before: dict[str, float] = field(default_factory=dict)
    _said: OncePerChange = field(default_factory=OncePerChange)

    async def run(self) -> None:
        """Attends the lease and writes, until cancelled; gives the lease up then."""
        try:
            while True:
                await self.clock.sleep(await self._turn())
        finally:
            if self.lease.held:
                with contextlib.suppress(ApiStatus, ApiUnreachable):  # it runs out by itself
                    await self.lease.release()

    async def _turn(self) -> float:
        """One round. Returns the pause after it in seconds."""
        if not any(True for _ in self.wanted()):
            # No models: the lease is none of our business, and costs nobody a request.
            return self.idle_pause_s
        try:
            if await self.lease.attend():
                await self._write_all()
            self._said.changed("lease", "")
            return self.lease.pause_s
        except ApiStatus as error:
            if error.code in (401, 403):
                self._say(
                    "no permission to elect the agent that writes statuses: needs get, create and update on leases of "
                    f"coordination.k8s.io (see manifests/base); conditions are not written ({error.message})"
                )
                return _NO_PERMISSION_PAUSE_S
            self._say(f"the status lease cannot be attended: {error}")
        except ApiUnreachable as error:
            self._say(f"the status lease cannot be attended: {error}")
        return _FAILURE_PAUSE_S

    async def _write_all(self) -> None:
        now = self.clock.monotonic()
        alive = set()
        for model, verdict in list(self.wanted()):
            alive.add(model.uid)
            if not self.lease.valid:
                return
            if self._not_before.get(model.uid, 0.0) > now:
                continue
            if conditions_with(model.conditions, verdict, model.generation, "") is None:
                continue
            await self._write(model, verdict)
        self._not_before = {uid: until for uid, until in self._not_before.items() if uid in alive}

    async def _write(self, model: Custom, verdict: Verdict) -> None:
        """Reads the object as it is now and writes its status, again after a conflict."""
        path = model.resource.path(model.namespace, model.name)
        # What was written comes back as an event; until then, and after a failure, it is left alone.
        self._not_before[model.uid] = self.clock.monotonic() + _FAILURE_PAUSE_S
        for _ in range(_CONFLICT_TRIES):
            try:
                current = await self.client.request("GET", path)
                if (current.get("metadata") or {}).get("uid") != model.uid:
                    return
                body = self._with_status(current, verdict)
                if body is None:
                    return
                await self.client.request("PUT", f"{path}/status", body=body)
            except ApiStatus as error:
                if error.code == 409:
                    self.conflicts += 1
                    continue
                if error.code == 404:
                    return
                if error.code == 403:
                    self._not_before[model.uid] = self.clock.monotonic() + _NO_PERMISSION_PAUSE_S
                    self._say(
                        "no permission to write the status of InferenceModels: needs get on inferencemodels, update "
                        f"on inferencemodels/status (see manifests/base) ({error.message})"
                    )
                    return
                self._say(f"the status of {model.full_name} was not written: {error}")
                return
            self.writes += 1
            self._said.log(
                _log, "info", ("verdict", model.uid), verdict, f"InferenceModel {model.full_name}: {verdict.message}"
            )
            return

    def _with_status(self, current: dict[str, Any], verdict: Verdict) -> dict[str, Any] | None:
        status: dict[str, Any] = current.get("status") or {}
        now = datetime.datetime.fromtimestamp(self.clock.wall(), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        generation = (current.get("metadata") or {}).get("generation") or 0
        conditions = conditions_with(status.get("conditions") or [], verdict, generation, now)
        return None if conditions is None else {**current, "status": {**status, "conditions": conditions}}

    def _say(self, sentence: str) -> None:
        self._said.log(_log, "warning", "lease", sentence, sentence)

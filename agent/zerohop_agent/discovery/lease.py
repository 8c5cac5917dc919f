"""Elects one agent with a Lease, as client-go does: the time of a holder is never compared with our own clock.

A lease counts as expired when we have watched it stand still for its whole duration.
"""

from __future__ import annotations

import datetime
import random
from typing import Any

from zerohop_agent.discovery.client import ApiClient, ApiStatus
from zerohop_agent.discovery.clock import Clock

DURATION_S = 15
_RENEW_S = 5.0
#: Those who wait ask less often: with 100 agents this is 7 requests a second in the cluster.
_WAIT_S = 12.0


class Lease:
    """One candidate for one Lease. Call `attend` again and again; `pause_s` says when."""

    def __init__(self, client: ApiClient, clock: Clock, namespace: str, name: str, identity: str) -> None:
        self.held = False
        self._client = client
        self._clock = clock
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._seen: tuple[Any, ...] | None = None
        self._seen_at = 0.0
        self._renewed_at = 0.0

    @property
    def pause_s(self) -> float:
        """Seconds until `attend` is due again."""
        return _RENEW_S if self.held else _WAIT_S * random.uniform(0.8, 1.2)

    @property
    def valid(self) -> bool:
        """True while nobody else can have taken the lease from us."""
        return self.held and self._clock.monotonic() - self._renewed_at < DURATION_S * 2 / 3

    async def attend(self) -> bool:
        """Renews the lease, takes it when it is free, and returns whether it is ours.

        Raises: ApiStatus (403 when there is no permission), ApiUnreachable. The lease counts as lost then.
        """
        self.held = False
        try:
            lease = await self._client.request("GET", f"{self._collection}/{self._name}")
        except ApiStatus as error:
            if error.code != 404:
                raise
            return await self._write("POST", self._collection, self._fresh(None))
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity")
        seen = (holder, spec.get("renewTime"), (lease.get("metadata") or {}).get("resourceVersion"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock.monotonic()
        mine = holder == self._identity
        stood_still_s = self._clock.monotonic() - self._seen_at
        duration_s = spec.get("leaseDurationSeconds")
        free = not holder or stood_still_s >= (duration_s if isinstance(duration_s, int) else DURATION_S)
        if not mine and not free:
            return False
        path = f"{self._collection}/{self._name}"
        return await self._write("PUT", path, self._fresh(lease))

    async def release(self) -> None:
        """Gives the lease up, so that the next one need not wait. Raises: as `attend`."""
        if not self.held:
            return
        self.held = False
        path = f"{self._collection}/{self._name}"
        lease = await self._client.request("GET", path)
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") == self._identity:
            lease["spec"] = spec | {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._client.request("PUT", path, body=lease)

    def _fresh(self, lease: Any) -> Any:
        now = datetime.datetime.fromtimestamp(self._clock.wall(), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = (lease or {}).get("spec") or {}
        taken = old.get("holderIdentity") != self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_S,
            "acquireTime": now if taken else old.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (1 if taken and lease else 0),
        }
        metadata = (lease or {}).get("metadata") or {"name": self._name}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    async def _write(self, method: str, path: str, body: Any) -> bool:
        asked_at = self._clock.monotonic()
        try:
            await self._client.request(method, path, body=body)
        except ApiStatus as error:
            if error.code == 409:
                # Someone else was faster.
                return False
            raise
        self.held = True
        self._renewed_at = asked_at
        return True

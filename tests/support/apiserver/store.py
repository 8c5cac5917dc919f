"""The objects of the cluster, and the history of their changes for those who watch them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.apiserver.asked import Selection
from zerohop_agent.discovery.resources import PODS, Resource, Role

LEASES = Resource(Role.PODS, "coordination.k8s.io", "v1", "leases", "Lease", built_in=True)


@dataclass
class Change:
    """One step of the history; `version` is the version of the object after it."""

    version: int
    kind: str
    resource: Resource
    body: dict[str, Any]


@dataclass(eq=False)
class Watch:
    """One open watch: woken after each change, cut where a test says so."""

    writer: asyncio.StreamWriter
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    cut: bool = False


class Store:
    """Change its objects from the test's own loop."""

    def __init__(self) -> None:
        self.version = 1000
        self.installed: list[Resource] = [PODS, LEASES]
        self.changes: list[Change] = []
        self.watches: set[Watch] = set()
        self._version = itertools.count(1000)
        self._objects: dict[tuple[Resource, str, str], dict[str, Any]] = {}

    def install(self, *resources: Resource) -> None:
        """Installs CRDs."""
        self.installed += [resource for resource in resources if resource not in self.installed]

    def uninstall(self, resource: Resource) -> None:
        """Removes a CRD and its objects; its watches end."""
        self.installed.remove(resource)
        for key in [key for key in self._objects if key[0] == resource]:
            del self._objects[key]
        self.cut_watches()

    def put(self, body: dict[str, Any]) -> dict[str, Any]:
        """Creates or replaces an object, whole; watches see it."""
        resource = self._resource_of(body)
        metadata = body["metadata"]
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        stored: dict[str, Any] = json.loads(json.dumps(body))
        self.version = next(self._version)
        stored["metadata"]["resourceVersion"] = str(self.version)
        stored["metadata"].setdefault("uid", f"uid-{self.version}")
        kind = "MODIFIED" if key in self._objects else "ADDED"
        if kind == "MODIFIED" and self._objects[key]["metadata"]["uid"] != stored["metadata"]["uid"]:
            self.remove(self._objects[key])
            kind = "ADDED"
        self._objects[key] = stored
        self._note(Change(self.version, kind, resource, stored))
        return stored

    def remove(self, body: Mapping[str, Any]) -> None:
        """Deletes an object; watches see it."""
        metadata = body["metadata"]
        resource = self._resource_of(body)
        stored = self._objects.pop((resource, metadata.get("namespace", ""), metadata["name"]))
        self.version = next(self._version)
        last = json.loads(json.dumps(stored))
        last["metadata"]["resourceVersion"] = str(self.version)
        self._note(Change(self.version, "DELETED", resource, last))

    def get(self, resource: Resource, name: str, namespace: str = "default") -> dict[str, Any]:
        """The object as stored."""
        return self._objects[(resource, namespace, name)]

    def has(self, resource: Resource, name: str, namespace: str) -> bool:
        """True while there is such an object."""
        return (resource, namespace, name) in self._objects

    def selected(self, selection: Selection) -> Iterator[dict[str, Any]]:
        """Every object of a list or watch, in the order in which they came."""
        return (body for (resource, _, _), body in self._objects.items() if selection.has(resource, body))

    def cut_watches(self) -> None:
        """Ends each open watch in the middle of an event."""
        for watch in list(self.watches):
            watch.cut = True
            watch.wake.set()

    def _resource_of(self, body: Mapping[str, Any]) -> Resource:
        for resource in self.installed:
            group_version = f"{resource.group}/{resource.version}" if resource.group else resource.version
            if (group_version, resource.kind) == (body["apiVersion"], body["kind"]):
                return resource
        raise LookupError(f"{body['apiVersion']} {body['kind']} is not installed")

    def _note(self, change: Change) -> None:
        self.changes.append(change)
        for watch in self.watches:
            watch.wake.set()

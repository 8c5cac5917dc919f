"""What a request asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from zerohop_agent.discovery.resources import Resource


@dataclass(frozen=True)
class Seen:
    """One request that arrived. `verb` is get, list, watch, create, update, discovery or review."""

    verb: str
    method: str
    path: str
    params: Mapping[str, str]
    token: str | None


class Place(NamedTuple):
    """What a path names: a collection, an object in it, or the object's subresource."""

    resource: Resource
    namespace: str | None
    name: str | None
    subresource: str | None


@dataclass(frozen=True)
class Selection:
    """The objects that one list or watch is about."""

    resource: Resource
    namespace: str | None
    params: Mapping[str, str]

    def has(self, resource: Resource, body: Mapping[str, Any]) -> bool:
        """True for an object that the request's namespace and selectors let through."""
        if resource != self.resource:
            return False
        if self.namespace is not None and body["metadata"].get("namespace") != self.namespace:
            return False
        wanted, unwanted, node = self.params.get("fieldSelector", ""), False, body["spec"].get("nodeName")
        if wanted.startswith("spec.nodeName!="):
            unwanted = node == wanted.removeprefix("spec.nodeName!=")
        elif wanted.startswith("spec.nodeName="):
            unwanted = node != wanted.removeprefix("spec.nodeName=")
        if unwanted:
            return False
        labels = body["metadata"].get("labels") or {}
        terms = [term.split("=", 1) for term in self.params.get("labelSelector", "").split(",") if term]
        return all(labels.get(key) == value for key, value in terms)


def place_of(path: str, installed: Iterable[Resource]) -> Place | None:
    """None for a path that names none of the resources."""
    for resource in installed:
        if not path.startswith(resource.base_path + "/"):
            continue
        parts = path.removeprefix(resource.base_path + "/").split("/")
        namespace = None
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        if parts[0] == resource.plural:
            return Place(
                resource, namespace, parts[1] if len(parts) > 1 else None, parts[2] if len(parts) > 2 else None
            )
    return None


def verb_of(method: str, path: str, params: Mapping[str, str], place: Place | None) -> str:
    """The verb, as permissions have it, or discovery or review."""
    if path.endswith("/selfsubjectaccessreviews"):
        return "review"
    if path.rstrip("/") in ("/apis", "/api") or (place is None and path.startswith("/apis/") and path.count("/") == 3):
        return "discovery"
    if method == "GET":
        if params.get("watch") in ("true", "1"):
            return "watch"
        return "get" if place is not None and place.name else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]

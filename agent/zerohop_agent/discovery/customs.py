"""Pools, objectives, rewrites and models, with the defaults and the validation of their CRDs.

Both are applied here as well as by the API server: a CRD may be installed without its validation (by hand, or an
older one), and an object may be older than its CRD. An object that breaks a rule is not used, and the reason is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zerohop_agent.discovery.pods import unix_seconds
from zerohop_agent.discovery.resources import Resource
from zerohop_agent.discovery.spec_fields import Invalid
from zerohop_agent.discovery.specs import spec_of


@dataclass(frozen=True, slots=True)
class Custom:
    """One object of a CRD: a valid spec with its defaults filled in, or the reason why it is of no use."""

    resource: Resource
    namespace: str
    name: str
    uid: str
    #: Unix seconds of the creation timestamp; 0 where there is none.
    created: float
    generation: int
    version: str
    spec: Mapping[str, Any]
    #: Conditions of the status, for writing it.
    conditions: tuple[Mapping[str, Any], ...] = ()
    invalid: str | None = None

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def pool(self) -> str:
        """`namespace/name` of the pool that the object refers to. A reference has no namespace: it is the object's."""
        return f"{self.namespace}/{self.spec.get('poolRef', {}).get('name', '')}"

    def entry(self) -> dict[str, Any]:
        """The spec with name, namespace, created and uid, as the snapshot holds it."""
        return {**self.spec, "name": self.name, "namespace": self.namespace, "created": self.created, "uid": self.uid}


def decoder(resource: Resource) -> Callable[[dict[str, Any]], Custom | None]:
    """A function from an object of `resource` to what is kept of it; None for what is no object at all."""

    def decode(body: dict[str, Any]) -> Custom | None:
        metadata = body.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            return None
        spec: Mapping[str, Any] = {}
        invalid = None
        try:
            spec = spec_of(body.get("spec"), resource)
        except Invalid as error:
            invalid = str(error)
        generation = metadata.get("generation")
        return Custom(
            resource=resource,
            namespace=str(metadata.get("namespace") or ""),
            name=metadata["name"],
            uid=str(metadata.get("uid") or ""),
            created=unix_seconds(metadata.get("creationTimestamp")),
            generation=generation if isinstance(generation, int) else 0,
            version=str(metadata.get("resourceVersion") or ""),
            spec=spec,
            conditions=_conditions(body.get("status")),
            invalid=invalid,
        )

    return decode


def _conditions(status: Any) -> tuple[Mapping[str, Any], ...]:
    conditions = status.get("conditions") if isinstance(status, dict) else None
    return tuple(item for item in conditions if isinstance(item, dict)) if isinstance(conditions, list) else ()

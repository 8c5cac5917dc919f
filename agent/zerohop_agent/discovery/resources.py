"""Which resources we read, and which of them a given API server has.

Several API groups and versions hold what we need, and a cluster has some of them: what is absent is done without and
said once, and looked for again, because a CRD can be installed later (kserve/kserve#5750 is what happens else).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from zerohop_agent.discovery.client import ApiClient, ApiStatus


class Role(enum.Enum):
    """What a resource is to us."""

    PODS = "pods"
    POOLS = "pools"
    OBJECTIVES = "objectives"
    REWRITES = "rewrites"
    MODELS = "models"


K8S_GROUP = "inference.networking.k8s.io"
X_K8S_GROUP = "inference.networking.x-k8s.io"
LLM_D_GROUP = "llm-d.ai"


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of one API group and version."""

    role: Role
    group: str
    version: str
    plural: str
    kind: str
    #: Served by every API server; everything else is a CRD that may be absent.
    built_in: bool = False

    @property
    def base_path(self) -> str:
        """Path of the group and version, without a slash at its end."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of the collection, or of one object or its subresource."""
        parts = [self.base_path]
        if namespace:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}/{self.version}" if self.group else self.plural


PODS = Resource(Role.PODS, "", "v1", "pods", "Pod", built_in=True)
POOLS_V1 = Resource(Role.POOLS, K8S_GROUP, "v1", "inferencepools", "InferencePool")
POOLS_V1ALPHA2 = Resource(Role.POOLS, X_K8S_GROUP, "v1alpha2", "inferencepools", "InferencePool")
#: Newest first: where a server has several versions of one resource in one group, the first that it serves is read.
CUSTOM: tuple[Resource, ...] = (
    POOLS_V1,
    POOLS_V1ALPHA2,
    Resource(Role.OBJECTIVES, LLM_D_GROUP, "v1alpha2", "inferenceobjectives", "InferenceObjective"),
    Resource(Role.OBJECTIVES, X_K8S_GROUP, "v1alpha2", "inferenceobjectives", "InferenceObjective"),
    Resource(Role.REWRITES, LLM_D_GROUP, "v1alpha2", "inferencemodelrewrites", "InferenceModelRewrite"),
    Resource(Role.REWRITES, X_K8S_GROUP, "v1alpha2", "inferencemodelrewrites", "InferenceModelRewrite"),
    Resource(Role.MODELS, X_K8S_GROUP, "v1alpha2", "inferencemodels", "InferenceModel"),
    Resource(Role.MODELS, X_K8S_GROUP, "v1alpha1", "inferencemodels", "InferenceModel"),
)
_GROUPS = (K8S_GROUP, X_K8S_GROUP, LLM_D_GROUP)
_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


async def served(client: ApiClient) -> frozenset[tuple[str, str, str]]:
    """(group, version, plural) of each custom resource of ours that the server has now.

    One request where the server aggregates its discovery (Kubernetes 1.30), else one per group and version.
    Raises: ApiStatus, ApiUnreachable.
    """
    answer = await client.request("GET", "/apis", accept=_AGGREGATED)
    if answer.get("kind") == "APIGroupDiscoveryList":
        return frozenset(_from_aggregated(answer))
    found: set[tuple[str, str, str]] = set()
    for group in answer.get("groups") or []:
        if group.get("name") not in _GROUPS:
            continue
        for version in group.get("versions") or []:
            found |= await _from_group_version(client, group["name"], str(version.get("version", "")))
    return frozenset(found)


def chosen(available: Iterable[tuple[str, str, str]], pool_group: str | None = None) -> tuple[Resource, ...]:
    """The resources to read, of those that are available.

    Pools are read in both groups. Objectives and rewrites moved to llm-d.ai: where that group has them the older one
    is not read, as llm-d does. Of several versions in one group only the newest is read.
    """
    have = frozenset(available)
    result: list[Resource] = []
    for resource in CUSTOM:
        if (resource.group, resource.version, resource.plural) not in have:
            continue
        if resource.role is Role.POOLS and pool_group is not None and resource.group != pool_group:
            continue
        same_role = [other for other in result if other.role is resource.role]
        if same_role and (resource.role is not Role.POOLS):
            continue
        result.append(resource)
    return tuple(result)


def _from_aggregated(answer: Any) -> Iterable[tuple[str, str, str]]:
    for group in answer.get("items") or []:
        name = (group.get("metadata") or {}).get("name")
        if name not in _GROUPS:
            continue
        for version in group.get("versions") or []:
            for resource in version.get("resources") or []:
                yield name, str(version.get("version", "")), str(resource.get("resource", ""))


async def _from_group_version(client: ApiClient, group: str, version: str) -> set[tuple[str, str, str]]:
    try:
        answer = await client.request("GET", f"/apis/{group}/{version}")
    except ApiStatus as error:
        if error.code == 404:
            return set()
        raise
    return {(group, version, str(resource.get("name", ""))) for resource in answer.get("resources") or []}

"""Which groups, versions and resources the server has, in both forms in which a client may ask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zerohop_agent.discovery.resources import Resource


def discovery(installed: Iterable[Resource], path: str, *, aggregated: bool) -> dict[str, Any] | None:
    """The answer at `path`; None where there is nothing. `aggregated`: everything at once (Kubernetes 1.30)."""
    customs = [resource for resource in installed if resource.group]
    if path == "/apis":
        return _aggregated(customs) if aggregated else _groups(customs)
    names = [{"name": each.plural} for each in customs if each.base_path == path]
    return {"kind": "APIResourceList", "resources": names} if names else None


def _versions(customs: list[Resource]) -> dict[str, list[str]]:
    groups = sorted({resource.group for resource in customs})
    return {group: sorted({each.version for each in customs if each.group == group}) for group in groups}


def _groups(customs: list[Resource]) -> dict[str, Any]:
    groups = [
        {"name": group, "versions": [{"groupVersion": f"{group}/{each}", "version": each} for each in versions]}
        for group, versions in _versions(customs).items()
    ]
    return {"kind": "APIGroupList", "groups": groups}


def _aggregated(customs: list[Resource]) -> dict[str, Any]:
    def resources(group: str, version: str) -> list[dict[str, str]]:
        return [{"resource": each.plural} for each in customs if (each.group, each.version) == (group, version)]

    items = [
        {
            "metadata": {"name": group},
            "versions": [{"version": version, "resources": resources(group, version)} for version in versions],
        }
        for group, versions in _versions(customs).items()
    ]
    return {"kind": "APIGroupDiscoveryList", "items": items}

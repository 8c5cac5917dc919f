"""Events and objects as the API server sends them: what of them the list-and-watch loop looks at.

Nothing here trusts what it reads: a field of another type counts as absent.
"""

from __future__ import annotations

from typing import Any

from zerohop_agent.discovery.client import ApiUnreachable

_INITIAL_END = "k8s.io/initial-events-end"


def parts(event: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The event's type and its object. Raises: ApiUnreachable when it has none."""
    body = event.get("object")
    if not isinstance(body, dict):
        raise ApiUnreachable("a watch event has no object")
    return str(event.get("type")), body


def version_of(body: Any) -> str | None:
    """The resource version to watch on from."""
    return str(_metadata(body).get("resourceVersion") or "") or None


def key_of(body: Any) -> str | None:
    """The object's uid, or namespace and name where it has none. A recreated object has another uid."""
    metadata = _metadata(body)
    uid = metadata.get("uid")
    if isinstance(uid, str) and uid:
        return uid
    name = metadata.get("name")
    return f"{metadata.get('namespace', '')}/{name}" if isinstance(name, str) and name else None


def ends_initial_list(bookmark: Any) -> bool:
    """True for the bookmark of a streaming list that says: this was all there is."""
    return (_metadata(bookmark).get("annotations") or {}).get(_INITIAL_END) == "true"


def _metadata(body: Any) -> dict[str, Any]:
    metadata = body.get("metadata") if isinstance(body, dict) else None
    return metadata if isinstance(metadata, dict) else {}

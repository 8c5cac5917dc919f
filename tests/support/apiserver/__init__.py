"""A small Kubernetes API server that speaks real HTTP, with the bad days of a real one.

    async with ApiServer() as server:
        server.install(POOLS_V1)
        server.put(pod("vllm-0", node="node-a", ip="10.1.0.5", labels={"app": "vllm"}))
        Discovery(settings, apply, client=ApiClient(load_config(server.kubeconfig(tmp_path))))

It lists (pages, selectors), watches (bookmarks, streaming lists, versions that expire), discovers (aggregated and
not), creates, replaces with conflict detection, has the status subresource and access reviews. Trouble is made with
`fail`, `expire`, `cut_watches`, `mute`, `empty_watches`, `forbid`, `require_token`, `stop` and `start`.
"""

from __future__ import annotations

from support.apiserver.asked import Seen
from support.apiserver.objects import custom, pod, pool
from support.apiserver.server import ApiServer
from support.apiserver.store import LEASES

__all__ = ["LEASES", "ApiServer", "Seen", "custom", "pod", "pool"]

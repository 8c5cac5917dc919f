"""Finds model servers in Kubernetes: pods, pools and the objects around them, as one `EndpointSet` after another.

`add_arguments` / `from_arguments` read the flags, `prepare` gives what watches until it is cancelled.

Bytes become objects in `client` and `watch_events`. `reflector` keeps the objects of one resource, `retries` is what it
does in trouble, `sources` runs all of them and the `kubelet`. `pods`, `customs` (by the rules of `specs`) and
`candidates` make endpoints of objects, purely; `session` puts both ends together. `status` and `lease` write verdicts
back.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from prometheus_client.registry import Collector

from zerohop_agent.discovery.flags import add_arguments, from_arguments
from zerohop_agent.discovery.settings import DiscoverySettings
from zerohop_agent.endpoints import EndpointSet
from zerohop_process.errors import ConfigError

__all__ = ["DiscoverySettings", "add_arguments", "from_arguments", "prepare"]


async def prepare(
    settings: DiscoverySettings,
    apply: Callable[[EndpointSet], None],
    register: Callable[[Collector], None] | None = None,
) -> Coroutine[Any, Any, None]:
    """What calls `apply` with everything known, each time something changes, until cancelled.

    Whatever can be wrong with the configuration is found here, before the agent says that it is ready. `register` is
    given a collector of metrics about discovery itself.

    Raises: ConfigError when the kubeconfig or the service account cannot be used, or a package is missing.
    """
    # Imported here: an agent without Kubernetes should not pay for the client's memory.
    try:
        from zerohop_agent.discovery.metrics import DiscoveryMetrics
        from zerohop_agent.discovery.session import Discovery
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--discovery needs the Python package {error.name!r}; run: pip install 'zerohop[kubernetes]'"
        ) from None

    session = Discovery(settings, apply)
    if register is not None:
        register(DiscoveryMetrics(session))
    await session.prepare()
    return session.run()

"""Everything that discovery reads at once: the kubelet where it can be used, and one reflector for each resource.

`Sources` runs them and gives out what they hold; what is made of it is in `session`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from zerohop_agent.discovery import customs, resources
from zerohop_agent.discovery.client import ApiClient, load_config
from zerohop_agent.discovery.clock import Clock
from zerohop_agent.discovery.customs import Custom
from zerohop_agent.discovery.follow_resources import ResourceFollower
from zerohop_agent.discovery.local_pods import pods_socket
from zerohop_agent.discovery.pods import Pod, pod_from_json
from zerohop_agent.discovery.reflector import Reflector, ResourceGone
from zerohop_agent.discovery.resources import Resource, Role
from zerohop_agent.discovery.settings import DiscoverySettings
from zerohop_agent.discovery.source_state import Counters, SourceState
from zerohop_process import log
from zerohop_process.log import OncePerChange, event

if TYPE_CHECKING:
    from zerohop_agent.discovery.kubelet import KubeletPods

    Source = Reflector[Custom] | Reflector[Pod] | KubeletPods

#: A resource, and the namespace in which it is read; None: all of them.
Key = tuple[Resource, str | None]

_log = log.get("discovery")

#: A resource counts as removed when this many answers in a row lack it: an API server that starts up may lack some.
_ABSENCES_BEFORE_FORGETTING = 2


class Sources:
    """The sources of one discovery. `changed` is set whenever one of them has something new to say."""

    def __init__(self, settings: DiscoverySettings, clock: Clock, client: ApiClient | None) -> None:
        self.client = client
        self.changed = asyncio.Event()
        self.reflectors: dict[Key, Reflector[Custom] | Reflector[Pod]] = {}
        self._settings = settings
        self._clock = clock
        self._kubelet: KubeletPods | None = None
        self._said = OncePerChange()
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._absences: dict[Resource, int] = {}
        #: The API server has said which resources it has.
        self._asked = False
        self._prepared = False

    # Running.

    async def prepare(self) -> None:
        """Decides on the sources, before anything runs. Raises: ConfigError when one of them cannot be used."""
        if self._prepared:
            return
        self._prepared = True
        settings = self._settings
        socket = await pods_socket(settings)
        if socket is not None:
            # Imported here: grpc is 20 MB that only this source needs.
            from zerohop_agent.discovery.kubelet import KubeletPods

            self._kubelet = KubeletPods(socket, self._clock, self.changed.set)
            event(_log, "info", "pods of this node come from the kubelet", socket=str(socket))
            if settings.needs_no_server:
                self.client = None
                return
        if self.client is None:
            self.client = ApiClient(load_config(settings.kubeconfig))

    def start(self, group: asyncio.TaskGroup) -> None:
        """Runs every source in `group`; those of resources that appear later, too."""
        if self._kubelet is not None:
            group.create_task(self._kubelet.run())
        client = self.client
        if client is None:
            return
        if self._kubelet is None or self._settings.scope == "pool":
            for namespace in self._namespaces():
                self._reflect(group, client, resources.PODS, namespace)
        use = functools.partial(self._use, group, client)
        group.create_task(ResourceFollower(client, self._settings, self._clock, use).run())

    async def close(self) -> None:
        """Closes the connections to the API server."""
        if self.client is not None:
            await self.client.close()

    def _use(self, group: asyncio.TaskGroup, client: ApiClient, wanted: tuple[Resource, ...]) -> None:
        """Reads the resources that the API server has, and forgets those that it surely has no longer."""
        if not self._asked:
            self._asked = True
            self.changed.set()
        for resource in wanted:
            self._absences.pop(resource, None)
            for namespace in self._namespaces():
                if (resource, namespace) not in self._tasks:
                    self._reflect(group, client, resource, namespace)
        for resource in {key[0] for key in self.reflectors} - set(wanted):
            if resource.built_in:
                continue
            self._absences[resource] = self._absences.get(resource, 0) + 1
            if self._absences[resource] >= _ABSENCES_BEFORE_FORGETTING:
                self._forget(resource)

    def _reflect(self, group: asyncio.TaskGroup, client: ApiClient, resource: Resource, namespace: str | None) -> None:
        key = (resource, namespace)
        reflector: Reflector[Custom] | Reflector[Pod]
        if resource.role is Role.PODS:
            reflector = self._pods_reflector(client, resource, namespace)
        else:
            reflector = self._customs_reflector(client, resource, namespace)
        self.reflectors[key] = reflector
        self._tasks[key] = group.create_task(self._guard(key, reflector))

    def _forget(self, resource: Resource) -> None:
        for key in [key for key in self.reflectors if key[0] is resource]:
            if (task := self._tasks.pop(key, None)) is not None:
                task.cancel()
            del self.reflectors[key]
        self.changed.set()

    def _namespaces(self) -> tuple[str | None, ...]:
        named = set(self._settings.namespaces)
        if not named and self._settings.pools:
            # Objects of other namespaces cannot belong to these pools.
            named = {namespace for namespace, _ in self._settings.pools}
        return tuple(sorted(named)) or (None,)

    def _pods_reflector(self, client: ApiClient, resource: Resource, namespace: str | None) -> Reflector[Pod]:
        """Of all pods, those that no other source has and that are asked for."""
        settings, selectors = self._settings, {}
        if self._kubelet is not None:
            selectors["fieldSelector"] = f"spec.nodeName!={settings.node_name}"
        elif settings.scope == "node" and settings.node_name:
            selectors["fieldSelector"] = f"spec.nodeName={settings.node_name}"
        return Reflector(resource, client, settings, self._clock, pod_from_json, self.changed.set, namespace, selectors)

    def _customs_reflector(self, client: ApiClient, resource: Resource, namespace: str | None) -> Reflector[Custom]:
        return Reflector(
            resource,
            client,
            self._settings,
            self._clock,
            customs.decoder(resource),
            self.changed.set,
            namespace,
            list_first=resource.role is Role.POOLS,
        )

    async def _guard(self, key: Key, reflector: Reflector[Custom] | Reflector[Pod]) -> None:
        """A resource that is gone ends its reflector; what it knew stays until its absence is sure."""
        while True:
            try:
                await reflector.run()
            except ResourceGone:
                self._tasks.pop(key, None)
                if key[0].built_in:
                    event(_log, "error", f"{key[0]}: the API server has no such resource")
                return
            except Exception as error:  # a fault of ours in one resource must not stop the others
                reflector.retries.trouble = sentence = f"{type(error).__name__}: {error}"
                self._said.log(_log, "error", ("fault", key), sentence, f"{key[0]}: internal error: {sentence}")
                await self._clock.sleep(self._settings.backoff_most_s)

    # What they hold.

    def pods(self) -> Iterator[Pod]:
        """Every pod that is known."""
        if self._kubelet is not None:
            yield from self._kubelet.objects.values()
        for (resource, _), reflector in self.reflectors.items():
            if resource.role is Role.PODS:
                yield from reflector.objects.values()  # type: ignore[misc]

    def customs(self) -> Iterator[Custom]:
        """Every object of a CRD that is known, valid or not."""
        for (resource, _), reflector in self.reflectors.items():
            if resource.role is not Role.PODS:
                yield from reflector.objects.values()  # type: ignore[misc]

    # How well it is known.

    def states(self) -> dict[str, SourceState]:
        """How old and how large each source is, by its name."""
        now = self._clock.monotonic()
        found: dict[str, SourceState] = {}
        sources: list[tuple[str, Source]] = [(_name(key), value) for key, value in list(self.reflectors.items())]
        if self._kubelet is not None:
            sources.append(("kubelet", self._kubelet))
        for name, source in sources:
            age_s = None if source.synced_at is None else now - source.synced_at
            found[name] = SourceState(age_s, len(source.objects), source.trouble)
        return found

    def counters(self) -> dict[str, Counters]:
        """What each reflector counted, by the name of its source."""
        return {_name(key): value.counters for key, value in list(self.reflectors.items())}

    def knows_pods(self) -> bool:
        """True once it is known which pods there are, of those that we may read."""
        if self._kubelet is not None and self._kubelet.synced_at is None:
            return False
        return self._settled(Role.PODS)

    def knows_pools(self) -> bool:
        """True once it is known which pools there are, or that there are none."""
        return self._asked and self._settled(Role.POOLS)

    def synced(self, role: Role) -> bool:
        """True while every source of `role` has said what there is."""
        return all(source.synced_at is not None for key, source in self.reflectors.items() if key[0].role is role)

    def customs_are_coming(self) -> bool:
        """True while a CRD's objects have not come yet and nothing is known to keep them away."""
        found = [source for key, source in self.reflectors.items() if not key[0].built_in]
        return any(source.synced_at is None and source.trouble is None for source in found)

    def _settled(self, role: Role) -> bool:
        """True when each source of `role` is settled and, if there are any, at least one has said what there is.

        So what we may not read does not keep away what we may.
        """
        sources = [source for key, source in self.reflectors.items() if key[0].role is role]
        return all(source.settled for source in sources) and (
            not sources or any(source.synced_at is not None for source in sources)
        )


def _name(key: Key) -> str:
    """A source as logs and metrics call it: the resource, and the namespace where it is one of several."""
    resource, namespace = key
    return f"{resource}@{namespace}" if namespace else str(resource)

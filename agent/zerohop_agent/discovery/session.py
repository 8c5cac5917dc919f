"""Runs every source together: which resources exist, one reflector for each, and one endpoint set out of all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from zerohop_agent.discovery import candidates, customs, resources, verdicts
from zerohop_agent.discovery.client import ApiClient, ApiStatus, ApiUnreachable, load_config
from zerohop_agent.discovery.clock import Clock, SystemClock
from zerohop_agent.discovery.customs import Custom
from zerohop_agent.discovery.lease import Lease
from zerohop_agent.discovery.local_pods import pods_socket
from zerohop_agent.discovery.pods import Pod, pod_from_json
from zerohop_agent.discovery.reflector import Reflector, ResourceGone
from zerohop_agent.discovery.resources import Resource, Role
from zerohop_agent.discovery.settings import DiscoverySettings
from zerohop_agent.discovery.source_state import Counters, SourceState
from zerohop_agent.discovery.status import StatusWriter
from zerohop_agent.endpoints import EndpointSet
from zerohop_process import log
from zerohop_process.log import OncePerChange, event

if TYPE_CHECKING:
    from zerohop_agent.discovery.kubelet import KubeletPods

    Source = Reflector[Custom] | Reflector[Pod] | KubeletPods

_log = log.get("discovery")

#: A resource counts as removed when this many answers in a row lack it: an API server that starts up may lack some.
_ABSENCES_BEFORE_FORGETTING = 2
#: Steps in which the first set waits for the objects around the pools.
_FIRST_WAITS = 20


class Discovery:
    """One run of discovery. `states()` says how well each source is known."""

    def __init__(
        self,
        settings: DiscoverySettings,
        apply: Callable[[EndpointSet], None],
        clock: Clock | None = None,
        client: ApiClient | None = None,
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.client = client
        self.reflectors: dict[tuple[Resource, str | None], Reflector[Custom] | Reflector[Pod]] = {}
        self.status_writer: StatusWriter | None = None
        #: Sets that were applied.
        self.applied = 0
        self._apply = apply
        self._pods: Mapping[str, Pod] | None = None
        self._kubelet: KubeletPods | None = None
        self._changed = asyncio.Event()
        self._said = OncePerChange()
        self._tasks: dict[tuple[Resource, str | None], asyncio.Task[None]] = {}
        self._absences: dict[Resource, int] = {}
        self._last: EndpointSet | None = None
        #: The API server has said which resources it has.
        self._asked = False
        self._prepared = False

    async def run(self) -> None:
        """Watches and applies until cancelled. Raises: ConfigError when there is nothing to watch with."""
        await self.prepare()
        try:
            async with asyncio.TaskGroup() as group:
                self._start(group)
                group.create_task(self._publish())
        finally:
            if self.client is not None:
                await self.client.close()

    def states(self) -> dict[str, SourceState]:
        """How old and how large each source is, by its name."""
        now = self.clock.monotonic()
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

    # Starting.

    async def prepare(self) -> None:
        """Decides on the sources, before anything runs. Raises: ConfigError when one of them cannot be used."""
        if self._prepared:
            return
        self._prepared = True
        settings = self.settings
        socket = await pods_socket(settings)
        if socket is not None:
            # Imported here: grpc is 20 MB that only this source needs.
            from zerohop_agent.discovery.kubelet import KubeletPods

            self._kubelet = KubeletPods(socket, self.clock, self._changed.set)
            self._pods = self._kubelet.objects
            event(_log, "info", "pods of this node come from the kubelet", socket=str(socket))
            if settings.needs_no_server:
                self.client = None
                return
        if self.client is None:
            self.client = ApiClient(load_config(settings.kubeconfig))

    def _start(self, group: asyncio.TaskGroup) -> None:
        if self._kubelet is not None:
            group.create_task(self._kubelet.run())
        client, settings = self.client, self.settings
        if client is None:
            return
        if self._kubelet is None or settings.scope == "pool":
            for namespace in self._namespaces():
                self._reflect(group, resources.PODS, namespace)
        group.create_task(self._follow_resources(group))
        if settings.write_status:
            identity = settings.identity or f"zerohop_{random.getrandbits(48):012x}"
            lease = Lease(client, self.clock, settings.lease_namespace, settings.lease_name, identity)
            self.status_writer = StatusWriter(client, self.clock, lease, self._wanted_statuses, settings.status_idle_s)
            group.create_task(self.status_writer.run())

    def _api(self) -> ApiClient:
        if self.client is None:
            raise RuntimeError("discovery without a client")
        return self.client

    def _namespaces(self) -> tuple[str | None, ...]:
        named = set(self.settings.namespaces)
        if not named and self.settings.pools:
            # Objects of other namespaces cannot belong to these pools.
            named = {namespace for namespace, _ in self.settings.pools}
        return tuple(sorted(named)) or (None,)

    def _reflect(self, group: asyncio.TaskGroup, resource: Resource, namespace: str | None) -> None:
        key, client = (resource, namespace), self._api()
        reflector: Reflector[Custom] | Reflector[Pod]
        if resource.role is Role.PODS:
            selectors = {}
            if self._kubelet is not None:
                selectors["fieldSelector"] = f"spec.nodeName!={self.settings.node_name}"
            elif self.settings.scope == "node" and self.settings.node_name:
                selectors["fieldSelector"] = f"spec.nodeName={self.settings.node_name}"
            reflector = Reflector(
                resource, client, self.settings, self.clock, pod_from_json, self._changed.set, namespace, selectors
            )
        else:
            reflector = Reflector(
                resource,
                client,
                self.settings,
                self.clock,
                customs.decoder(resource),
                self._changed.set,
                namespace,
                list_first=resource.role is Role.POOLS,
            )
        self.reflectors[key] = reflector
        self._tasks[key] = group.create_task(self._guard(key, reflector))

    async def _guard(self, key: tuple[Resource, str | None], reflector: Reflector[Custom] | Reflector[Pod]) -> None:
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
                await self.clock.sleep(self.settings.backoff_most_s)

    # Which resources exist.

    async def _follow_resources(self, group: asyncio.TaskGroup) -> None:
        client = self._api()
        failures = 0
        await self.clock.sleep(random.uniform(0, self.settings.start_jitter_s))
        while True:
            try:
                available = await resources.served(client)
            except (ApiStatus, ApiUnreachable) as error:
                failures += 1
                self._said.log(
                    _log,
                    "warning",
                    "served",
                    str(error),
                    f"cannot ask the API server what it serves: {error}; trying again",
                )
                most = min(self.settings.backoff_most_s, self.settings.backoff_first_s * 2.0 ** min(failures, 16))
                await self.clock.sleep(most * random.uniform(0.5, 1.0))
                continue
            failures = 0
            self._said.changed("served", "")
            self._use(group, resources.chosen(available, self.settings.pool_group))
            await self.clock.sleep(self.settings.api_discovery_interval_s * random.uniform(0.8, 1.2))

    def _use(self, group: asyncio.TaskGroup, wanted: tuple[Resource, ...]) -> None:
        if not self._asked:
            self._asked = True
            self._changed.set()
        for resource in wanted:
            self._absences.pop(resource, None)
            for namespace in self._namespaces():
                if (resource, namespace) not in self._tasks:
                    self._reflect(group, resource, namespace)
        for resource in {key[0] for key in self.reflectors} - set(wanted):
            if resource.built_in:
                continue
            self._absences[resource] = self._absences.get(resource, 0) + 1
            if self._absences[resource] >= _ABSENCES_BEFORE_FORGETTING:
                self._forget(resource)
        self._say_what_is_missing(wanted)

    def _forget(self, resource: Resource) -> None:
        for key in [key for key in self.reflectors if key[0] is resource]:
            if (task := self._tasks.pop(key, None)) is not None:
                task.cancel()
            del self.reflectors[key]
        self._changed.set()

    def _say_what_is_missing(self, wanted: tuple[Resource, ...]) -> None:
        roles = {resource.role for resource in wanted}
        using = ", ".join(str(resource) for resource in wanted) or "none"
        self._said.log(_log, "info", "using", using, f"inference resources that the cluster has: {using}")
        if Role.POOLS not in roles and self.settings.static_pool is None:
            message = (
                "the InferencePool CRD is not installed, so there are no pools yet; install it "
                "(kubernetes-sigs/gateway-api-inference-extension) or describe a pool with --pod-selector"
            )
            self._said.log(_log, "warning", "pools", "missing", message)
        else:
            self._said.changed("pools", "")

    # What comes out.

    async def _publish(self) -> None:
        """Applies a new set after each change; changes that come together are applied together."""
        while True:
            await self._changed.wait()
            await self.clock.sleep(self.settings.coalesce_s)
            self._changed.clear()
            if not self._can_speak():
                continue
            for _ in range(_FIRST_WAITS):
                if not self._may_wait():
                    break
                await self.clock.sleep(self.settings.first_wait_s / _FIRST_WAITS)
            new = self._endpoint_set()
            if new != self._last:
                self._last = new
                self.applied += 1
                self._apply(new)

    def _can_speak(self) -> bool:
        """False until pods and pools were seen once: an empty set would clear what a restarted agent still has.

        What we may not read does not keep away what we may.
        """
        if self._kubelet is not None and self._kubelet.synced_at is None:
            return False
        if not self._seen(Role.PODS):
            return False
        return self.settings.static_pool is not None or (self._asked and self._seen(Role.POOLS))

    def _seen(self, role: Role) -> bool:
        """True when each source of `role` is settled and, if there are any, at least one has said what there is."""
        sources = [source for key, source in self.reflectors.items() if key[0].role is role]
        return all(source.settled for source in sources) and (
            not sources or any(source.synced_at is not None for source in sources)
        )

    def _may_wait(self) -> bool:
        """True while the first set should wait a little for objectives, rewrites and models: what they say of a request
        counts from the first one on. Whatever keeps them away does not keep endpoints away for longer than that.
        """
        customs = [source for key, source in self.reflectors.items() if not key[0].built_in]
        return self._last is None and any(source.synced_at is None and source.trouble is None for source in customs)

    def _endpoint_set(self) -> EndpointSet:
        every = list(self._customs())
        pools, complaints = candidates.pools_of(every, self.settings)
        for complaint in complaints:
            self._said.log(_log, "warning", ("pool", complaint), complaint, complaint)
        for custom in every:
            if custom.invalid is not None and custom.resource.role is not Role.POOLS:
                sentence = f"{custom.resource.kind} {custom.full_name} is not valid: {custom.invalid}"
                self._said.log(_log, "warning", ("custom", custom.uid), sentence, sentence)
        duplicates = verdicts.duplicates_of(every)
        return candidates.endpoint_set(self._all_pods(), pools, every, frozenset(duplicates), self.settings)

    def _all_pods(self) -> Iterator[Pod]:
        if self._pods is not None:
            yield from self._pods.values()
        for (resource, _), reflector in self.reflectors.items():
            if resource.role is Role.PODS:
                yield from reflector.objects.values()  # type: ignore[misc]

    def _customs(self) -> Iterator[Custom]:
        for (resource, _), reflector in self.reflectors.items():
            if resource.role is not Role.PODS:
                yield from reflector.objects.values()  # type: ignore[misc]

    def _wanted_statuses(self) -> Iterator[tuple[Custom, verdicts.Verdict]]:
        every = list(self._customs())
        pools = [source for key, source in self.reflectors.items() if key[0].role is Role.POOLS]
        if any(source.synced_at is None for source in pools):
            return
        names = {custom.full_name for custom in every if custom.resource.role is Role.POOLS}
        duplicates = verdicts.duplicates_of(every)
        for custom in every:
            if custom.resource.role is Role.MODELS:
                yield custom, verdicts.verdict_on(custom, names, duplicates)


def _name(key: tuple[Resource, str | None]) -> str:
    """A source as logs and metrics call it: the resource, and the namespace where it is one of several."""
    resource, namespace = key
    return f"{resource}@{namespace}" if namespace else str(resource)

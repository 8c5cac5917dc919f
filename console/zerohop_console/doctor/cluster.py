"""The Kubernetes API: reachable, allowed, and what it says about pools and their pods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from zerohop_agent.discovery import candidates, customs, resources
from zerohop_agent.discovery.client import ApiClient, ApiStatus, ApiUnreachable, NoConfig, load_config
from zerohop_agent.discovery.pods import Pod, pod_from_json
from zerohop_agent.discovery.resources import PODS, Resource, Role
from zerohop_agent.discovery.settings import DiscoverySettings
from zerohop_agent.endpoints import EndpointSpec
from zerohop_console.doctor.finding import Finding, fail, ok, skip, warn
from zerohop_process.errors import ConfigError

_CONFIG_FIX = "kubectl reads the same file: compare with kubectl version"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_LEASES = Resource(Role.MODELS, "coordination.k8s.io", "v1", "leases", "Lease", built_in=True)
#: What each resource is needed for; the status writes are a convenience.
_USES = {
    Role.PODS: "to find model servers",
    Role.POOLS: "to know the pools",
    Role.OBJECTIVES: "for priorities",
    Role.REWRITES: "for model rewrites",
    Role.MODELS: "for InferenceModels",
}


class Cluster:
    """What the checks of one API server found, for the checks after them."""

    def __init__(self, settings: DiscoverySettings) -> None:
        self.settings = settings
        #: Endpoints that the rules make of the cluster; None: not known.
        self.endpoints: list[EndpointSpec] | None = None

    async def check(self) -> AsyncIterator[Finding]:
        """Findings, from configuration to pools."""
        try:
            config = load_config(self.settings.kubeconfig)
        except NoConfig as error:
            if self.settings.kubeconfig is None:
                yield skip("api", f"{error}")
            else:
                yield fail("api", f"{error}", "correct --kubeconfig")
            return
        except ConfigError as error:
            yield fail("api", f"{error}", _CONFIG_FIX)
            return
        try:
            client = ApiClient(config)
        except ConfigError as error:
            yield fail("api", f"{error}", _CONFIG_FIX)
            return
        try:
            try:
                version = await client.request("GET", "/version")
                yield ok("api", f"{client.server} answers, version {version.get('gitVersion', 'unknown')}")
            except ApiStatus as error:
                if error.code not in (403, 404):
                    yield _refused(client.server, error)
                    return
                yield ok("api", f"{client.server} answers")
            except ApiUnreachable as error:
                yield fail(
                    "api", f"{client.server} does not answer: {error}",
                    "check the address, the network policy for egress, and the certificate authority",
                )  # fmt: skip
                return
            async for finding in self._permissions_and_pools(client):
                yield finding
        finally:
            await client.close()

    async def _permissions_and_pools(self, client: ApiClient) -> AsyncIterator[Finding]:
        try:
            available = resources.chosen(await resources.served(client), self.settings.pool_group)
        except (ApiStatus, ApiUnreachable) as error:
            yield fail("api", f"cannot ask which resources there are: {error}", "allow GET on /apis (system:discovery)")
            return
        denied = False
        for namespace in self.settings.namespaces or ("",):
            async for finding in _permissions(client, (PODS, *available), namespace):
                denied = denied or finding.level == "fail"
                yield finding
            if self.settings.write_status and any(resource.role is Role.MODELS for resource in available):
                yield await _status_permissions(client, self.settings, available, namespace)
        if not any(resource.role is Role.POOLS for resource in available) and self.settings.static_pool is None:
            yield fail(
                "pools", "the InferencePool CRD is not installed",
                "install it (kubernetes-sigs/gateway-api-inference-extension), or describe a pool with --pod-selector",
            )  # fmt: skip
            return
        if not denied:
            async for finding in self._pools(client, available):
                yield finding

    async def _pools(self, client: ApiClient, available: Sequence[Resource]) -> AsyncIterator[Finding]:
        found: list[customs.Custom] = []
        pods: list[Pod] = []
        try:
            for resource in available:
                bodies = await _every(client, resource, self.settings.namespaces)
                found += [custom for body in bodies if (custom := customs.decoder(resource)(body)) is not None]
            bodies = await _every(client, PODS, self.settings.namespaces)
            pods = [pod for body in bodies if (pod := pod_from_json(body)) is not None]
        except (ApiStatus, ApiUnreachable) as error:
            yield fail("pools", f"cannot list: {error}", "see the check rbac")
            return
        for custom in found:
            if custom.invalid is not None:
                yield fail(
                    "pools", f"{custom.resource.kind} {custom.full_name} is not valid: {custom.invalid}", "correct it"
                )
        pools, complaints = candidates.pools_of(found, self.settings)
        for complaint in complaints:
            if "is not valid" not in complaint:
                yield warn("pools", complaint, "keep one of them")
        wanted = {f"{namespace}/{name}" for namespace, name in self.settings.pools} - {pool.full_name for pool in pools}
        for name in sorted(wanted):
            yield fail("pools", f"there is no InferencePool {name}", "create it, or correct --pool")
        if not pools and not wanted:
            yield warn("pools", "there is no InferencePool", "create one; see docs/kubernetes.md")
        self.endpoints = candidates.endpoints_of(pods, pools, self.settings)
        for pool in pools:
            yield _pool(pool, pods, self.endpoints)


def _pool(pool: candidates.Pool, pods: Sequence[Pod], endpoints: Sequence[EndpointSpec]) -> Finding:
    name = f"InferencePool {pool.full_name}"
    selected = [pod for pod in pods if pool.selects(pod)]
    usable = [spec for spec in endpoints if pool.full_name in spec.pools and not spec.draining]
    if not selected:
        labels = ",".join(f"{key}={value}" for key, value in pool.match_labels.items())
        return fail(
            "pools", f"{name} selects no pod", f"its labels are {labels}: compare with kubectl get pods --show-labels"
        )
    if not usable:
        ready = sum(pod.ready for pod in selected)
        return fail(
            "pools", f"{name} selects {len(selected)} pods, {ready} of them Ready, and has no endpoint",
            "kubectl describe one of them; with --scope node only this node's count",
        )  # fmt: skip
    return ok("pools", f"{name}: {len(usable)} endpoints of {len(selected)} pods")


async def _permissions(client: ApiClient, needed: Sequence[Resource], namespace: str) -> AsyncIterator[Finding]:
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    missing: list[str] = []
    for resource in needed:
        for verb in ("get", "list", "watch"):
            try:
                allowed = await _allowed(client, resource, verb, namespace)
            except (ApiStatus, ApiUnreachable) as error:
                yield fail(
                    "rbac", f"access reviews do not work: {error}", "allow system:basic-user, as clusters do by default"
                )
                return
            if not allowed:
                missing.append(f"{verb} {resource.plural} ({_USES[resource.role]})")
    if missing:
        yield fail(
            "rbac", f"not allowed {where}: {', '.join(missing)}",
            "pass the agent's --namespaces to the doctor too; else bind the Role of manifests/base/rbac.yaml in each "
            "namespace, or the ClusterRole of manifests/components/all-namespaces",
        )  # fmt: skip
    else:
        yield ok("rbac", f"may read {', '.join(resource.plural for resource in needed)} {where}")


async def _status_permissions(
    client: ApiClient, settings: DiscoverySettings, available: Sequence[Resource], namespace: str
) -> Finding:
    """What only the conditions of InferenceModels need: all else works without."""
    (models,) = [resource for resource in available if resource.role is Role.MODELS]
    asked = [(models, "update", "status", namespace, "")]
    asked += [(_LEASES, verb, "", settings.lease_namespace, settings.lease_name) for verb in ("get", "update")]
    asked += [(_LEASES, "create", "", settings.lease_namespace, "")]
    missing = []
    try:
        for resource, verb, part, where, name in asked:
            if not await _allowed(client, resource, verb, where, part, name):
                missing.append(f"{verb} {resource.plural}{f'/{part}' if part else ''}")
    except (ApiStatus, ApiUnreachable) as error:
        return warn(
            "rbac", f"access reviews do not work: {error}", "allow system:basic-user, as clusters do by default"
        )
    if missing:
        return warn(
            "rbac", f"conditions of InferenceModels cannot be written: not allowed to {', '.join(missing)}",
            "see manifests/base/rbac.yaml, or pass --no-write-status",
        )  # fmt: skip
    return ok("rbac", "may write the conditions of InferenceModels")


async def _allowed(
    client: ApiClient, resource: Resource, verb: str, namespace: str, subresource: str = "", name: str = ""
) -> bool:
    attributes = {"verb": verb, "group": resource.group, "resource": resource.plural, "namespace": namespace}
    attributes |= {key: value for key, value in (("subresource", subresource), ("name", name)) if value}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.request("POST", _REVIEWS, body=body)
    return bool((answer.get("status") or {}).get("allowed"))


async def _every(client: ApiClient, resource: Resource, namespaces: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for namespace in namespaces or (None,):
        answer = await client.request("GET", resource.path(namespace), params={"resourceVersion": "0"})
        found += answer.get("items") or []
    return found


def _refused(server: str, error: ApiStatus) -> Finding:
    fix = "the token or client certificate is not accepted: renew it" if error.code == 401 else "see the server's log"
    return fail("api", f"{server} refuses: {error}", fix)

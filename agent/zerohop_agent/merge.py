"""From what several sources say to one set of endpoints: each key once, each address once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zerohop_agent.endpoints import EndpointSet, EndpointSpec, PoolSpec

#: What a person wrote goes before what was discovered, and the file, which can say more, before the flags.
_FIRST = ("file", "flags")


@dataclass(frozen=True, slots=True)
class Merged:
    """The endpoints by key, the pools in a stable order, and what had to be left out: (address, name of the loser)."""

    endpoints: dict[str, EndpointSpec]
    pools: tuple[PoolSpec, ...]
    left_out: tuple[tuple[str, str], ...] = ()


def merge(sets: Mapping[str, EndpointSet]) -> Merged:
    """One set out of the sources' sets, by source name.

    Of two endpoints with one address the one that is not draining stays: in Kubernetes an address can pass from a
    terminating pod to a new one. Otherwise the source that goes first stays: `file`, `flags`, then the others by name.
    """
    order = sorted(sets, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))
    by_address: dict[str, EndpointSpec] = {}
    keys: set[str] = set()
    left_out: list[tuple[str, str]] = []
    for source in order:
        for spec in sets[source].endpoints:
            address = str(spec.address)
            other = by_address.get(address)
            if spec.key in keys or (other is not None and not (other.draining and not spec.draining)):
                if other is None or other.key != spec.key:
                    left_out.append((address, spec.name))
                continue
            if other is not None:
                keys.discard(other.key)
                left_out.append((address, other.name))
            by_address[address] = spec
            keys.add(spec.key)
    pools: dict[str, PoolSpec] = {}
    for source in order:
        for pool in sets[source].pools:
            pools.setdefault(pool.name, pool)
    for spec in by_address.values():
        for name in spec.pools:
            pools.setdefault(name, PoolSpec(name))
    endpoints = {spec.key: _as_its_pools(spec, pools) for spec in by_address.values()}
    return Merged(endpoints, tuple(pools.values()), tuple(left_out))


def _as_its_pools(spec: EndpointSpec, pools: Mapping[str, PoolSpec]) -> EndpointSpec:
    """What an endpoint does not say of itself, the first of its pools that does says for it."""
    its = [pools[name] for name in spec.pools]
    engine = spec.engine or next((pool.engine for pool in its if pool.engine), None)
    version = spec.protocol_version or next((pool.protocol_version for pool in its if pool.protocol_version), None)
    if (engine, version) == (spec.engine, spec.protocol_version):
        return spec
    return replace(spec, engine=engine, protocol_version=version)

"""The cold half of the snapshot: names, addresses and everything else that changes seldom, as one msgpack map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgpack

from zerohop_agent.endpoints import PoolSpec
from zerohop_agent.rows import EndpointRow

#: Pools that a row's `pools` word has bits for.
POOL_LIMIT = 64


class ColdMap:
    """Builds the map. Bit i of a row's `pools` is pool i and its `origin` is an index, so both orders are kept.

    A map that a previous agent left is taken over: rows of endpoints that no source has named yet keep their entries
    until `drop_inherited`, so that a restart takes no endpoint away from a picker.
    """

    def __init__(self, node: str, inherited: bytes = b"") -> None:
        before = decode(inherited)
        self.node = node
        self.origins: list[str] = [node]
        self._inherited: dict[int, Any] = dict(before.get("endpoints") or {})
        self._inherited_pools: list[dict[str, Any]] = list(before.get("pools") or ())
        self.inherited_adapters: list[str | None] = list(before.get("adapters") or ())
        self._pools: list[dict[str, Any]] = list(self._inherited_pools)
        self._pool_bits: dict[str, int] = {}
        self._count_pools()
        self.pools_refused = 0

    def set_pools(self, pools: Iterable[PoolSpec]) -> None:
        """Take over the pools; while inherited rows are left their pools keep their places."""
        new = {pool.name: _pool(pool) for pool in pools}
        kept = [new.pop(pool["name"], pool) for pool in self._pools if pool["name"] in new or self._inherited]
        merged = kept + list(new.values())
        self.pools_refused = max(0, len(merged) - POOL_LIMIT)
        self._pools = merged[:POOL_LIMIT]
        self._count_pools()

    def pool_word(self, names: Iterable[str]) -> int:
        """The bits of a row's `pools` column."""
        word = 0
        for name in names:
            bit = self._pool_bits.get(name)
            if bit is not None:
                word |= 1 << bit
        return word

    def origin(self, name: str) -> int:
        """The index for a row's `origin` column; 0 is this node."""
        if not name or name == self.node:
            return 0
        if name not in self.origins:
            self.origins.append(name)
        return self.origins.index(name)

    def drop_inherited(self) -> None:
        """Forget the rows that nobody has named again."""
        self._inherited.clear()

    def build(
        self,
        rows: Iterable[EndpointRow],
        generations: Mapping[int, int],
        adapters: Sequence[str | None],
        gpus: Sequence[Mapping[str, Any]],
        *,
        served: bool = True,
    ) -> bytes:
        """The map as bytes. `served=False` leaves out what the servers say that they serve: what a server says may be
        of any length, and must not keep the other endpoints out."""
        endpoints: dict[int, Any] = dict(self._inherited)
        for row in rows:
            endpoints[row.row] = _endpoint(row, generations[row.row], served=served)
            self._inherited.pop(row.row, None)
        packed: bytes = msgpack.packb(
            {
                "v": 1,
                "node": self.node,
                "origins": self.origins,
                "pools": self._pools,
                "adapters": list(adapters),
                "endpoints": endpoints,
                "gpus": [dict(gpu) for gpu in gpus],
            },
            default=str,
        )
        return packed

    def _count_pools(self) -> None:
        self._pool_bits = {pool["name"]: bit for bit, pool in enumerate(self._pools)}


def decode(blob: bytes) -> dict[str, Any]:
    """A map out of its bytes; empty when there is none or it cannot be read."""
    if not blob:
        return {}
    try:
        decoded = msgpack.unpackb(blob, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return {}
    return decoded if isinstance(decoded, dict) and decoded.get("v") == 1 else {}


def _pool(pool: PoolSpec) -> dict[str, Any]:
    return {
        **pool.attributes,
        "name": pool.name,
        "app_protocol": pool.app_protocol,
        "objectives": [dict(item) for item in pool.objectives],
        "rewrites": [dict(item) for item in pool.rewrites],
        "models": [dict(item) for item in pool.models],
    }


def _endpoint(row: EndpointRow, generation: int, *, served: bool) -> dict[str, Any]:
    spec = row.spec
    models = list(spec.models)
    if served:
        models += [name for name in row.served_models if name not in spec.models]
    return {
        "address": str(spec.address),
        "name": spec.name,
        "uid": spec.uid,
        "generation": generation,
        "pools": list(spec.pools),
        "labels": dict(spec.labels),
        "models": models,
        "adapters": list(row.served_adapters) if served else [],
        "engine": spec.engine or row.engine,
        "role": spec.role,
        "gpus": list(spec.gpus),
        "block_size": _whole(row.geometry("block_size")),
        "num_blocks": _whole(row.geometry("num_blocks")),
        "max_model_len": _whole(row.geometry("max_model_len")),
        "weight": spec.weight,
    }


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None else None

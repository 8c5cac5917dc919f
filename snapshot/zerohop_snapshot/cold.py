"""What the cold map of a snapshot holds. The map itself is msgpack bytes, which this package neither makes nor reads.

Readers decode it only when its generation changes, so it carries what changes rarely: names, labels, models, adapters
and the objects of the pools. Rows are the row numbers of the endpoint block.
"""

from __future__ import annotations

from typing import Any, Final, TypedDict

__all__ = ["COLD_VERSION", "ColdEndpoint", "ColdGpu", "ColdMap", "ColdPool"]

COLD_VERSION: Final = 1


class ColdEndpoint(TypedDict, total=False):
    """One endpoint; `address` is ip:port, IPv6 in brackets."""

    address: str
    name: str
    uid: str
    #: generation of the row, to be compared with the hot column
    generation: int
    pools: list[str]
    labels: dict[str, str]
    models: list[str]
    #: those of `models` that are LoRA adapters of another one
    adapters: list[str]
    engine: str | None
    role: str | None
    #: UUIDs of the GPUs that serve it
    gpus: list[str]
    block_size: int | None
    num_blocks: int | None
    max_model_len: int | None


class ColdPool(TypedDict, total=False):
    """One pool; its index is the bit of the hot column `pools`. The objects are the custom resources' plain spec maps
    with `name`, `namespace`, `uid` and `created` (Unix seconds) added."""

    name: str
    app_protocol: str
    objectives: list[dict[str, Any]]
    rewrites: list[dict[str, Any]]
    models: list[dict[str, Any]]


class ColdGpu(TypedDict, total=False):
    """One GPU; its position is its row in the node block."""

    uuid: str
    name: str
    index: int
    bus_id: str
    mig: list[dict[str, Any]]


class ColdMap(TypedDict, total=False):
    """The whole map; `v` is COLD_VERSION."""

    v: int
    node: str
    #: index 0 is this node
    origins: list[str]
    pools: list[ColdPool]
    #: adapter name by slot of the lora_* columns, None = free
    adapters: list[str | None]
    endpoints: dict[int, ColdEndpoint]
    gpus: list[ColdGpu]

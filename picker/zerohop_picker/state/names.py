"""What endpoints are called: the snapshot's cold map, decoded once per generation of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt


class Names:
    """Addresses, labels, adapters and pools of one cold generation; all lists are indexed by endpoint row.

    Never changes after construction, so a decision may hold on to it. ``rows`` is the number of rows of the table.
    """

    def __init__(self, cold: Mapping[str, Any], rows: int) -> None:
        """Index a decoded cold map. Missing parts count as empty: an older agent may know less than we do."""
        self.rows = rows
        self.node: str = cold.get("node") or ""
        self.pool_specs: tuple[Mapping[str, Any], ...] = tuple(cold.get("pools") or ())
        self.pool_bits: dict[str, int] = {spec["name"]: bit for bit, spec in enumerate(self.pool_specs)}
        #: Adapter name to slot: bit ``slot`` of the lora_* columns.
        self.adapters: dict[str, int] = {n: s for s, n in enumerate(cold.get("adapters") or ()) if n}
        #: Every adapter that is known: in flight at some time, or listed by a model server as one.
        self.known_adapters: set[str] = set(self.adapters)
        self.addresses: list[str | None] = [None] * rows
        self.names: list[str] = [""] * rows
        self.labels: list[Mapping[str, str]] = [{}] * rows
        self.roles: list[str | None] = [None] * rows
        self.models: list[tuple[str, ...]] = [()] * rows
        self.num_blocks = np.full(rows, np.nan)
        self.block_size = np.full(rows, np.nan)
        #: ip:port to row, and bare ip to its rows (one pod may listen on several ports).
        self.row_of: dict[str, int] = {}
        self.rows_of_host: dict[str, list[int]] = {}
        self.row_of_name: dict[str, int] = {}
        self._label_values: dict[str, npt.NDArray[np.object_]] = {}
        for row, endpoint in (cold.get("endpoints") or {}).items():
            if 0 <= int(row) < rows:
                self._add(int(row), endpoint)

    def _add(self, row: int, endpoint: Mapping[str, Any]) -> None:
        address = endpoint.get("address")
        if not address:
            return
        self.addresses[row] = address
        self.row_of[address] = row
        self.rows_of_host.setdefault(host_of(address), []).append(row)
        self.names[row] = endpoint.get("name") or address
        self.row_of_name[self.names[row]] = row
        self.labels[row] = endpoint.get("labels") or {}
        self.roles[row] = endpoint.get("role")
        self.models[row] = tuple(endpoint.get("models") or ())
        self.known_adapters.update(endpoint.get("adapters") or ())
        self.num_blocks[row] = np.nan if endpoint.get("num_blocks") is None else endpoint["num_blocks"]
        self.block_size[row] = np.nan if endpoint.get("block_size") is None else endpoint["block_size"]

    def label_values(self, key: str) -> npt.NDArray[np.object_]:
        """Return the value of label ``key`` of every row (None where it is absent), as an object array."""
        values = self._label_values.get(key)
        if values is None:
            values = np.array([labels.get(key) for labels in self.labels], dtype=object)
            self._label_values[key] = values
        return values

    def pool_bit(self, pool: str | None) -> tuple[bool, int | None]:
        """Return (whether the pool is known, its bit); bit None = all endpoints.

        Without pools in the snapshot (endpoints from flags or a file) every name means all endpoints.
        """
        if pool is None or not self.pool_bits:
            return True, None
        bit = self.pool_bits.get(pool)
        if bit is None:
            bit = next((b for name, b in self.pool_bits.items() if same_pool(name, pool)), None)
        return bit is not None, bit

    def rows_named(self, entries: tuple[str, ...]) -> list[int]:
        """Return the rows that ``entries`` name: an ip:port its own row, a bare ip all rows of that host."""
        rows: list[int] = []
        for entry in entries:
            row = self.row_of.get(entry)
            if row is not None:
                rows.append(row)
            else:
                rows.extend(self.rows_of_host.get(entry.strip("[]"), ()))
        return rows


def same_pool(name: str, pool: str) -> bool:
    """Return whether ``namespace/name`` is what ``pool`` (the same, or a bare name) means."""
    return name == pool or ("/" not in pool and name.rpartition("/")[2] == pool)


def decode(cold: bytes, rows: int) -> Names:
    """Return the names in a cold blob; an empty or unreadable blob gives a table without names."""
    if not cold:
        return Names({}, rows)
    try:
        decoded = msgpack.unpackb(cold, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return Names({}, rows)
    return Names(decoded if isinstance(decoded, dict) else {}, rows)


def host_of(address: str) -> str:
    """Return the host of ``ip:port`` or ``[v6]:port``, without brackets."""
    return address.rpartition(":")[0].strip("[]")

"""Endpoints and requests for plugin tests, made in memory: no file, no clock."""

# ruff: noqa: E501
from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from zerohop_picker.request.model import LLMRequest
from zerohop_picker.scheduling.plugin import PluginType
from zerohop_picker.scheduling.registry import TYPES
from zerohop_picker.scheduling.request import Request
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.loads import Loads, PickLog
from zerohop_picker.state.prefixes import Lookup
from zerohop_picker.state.view import Latest, View
from zerohop_process.strict import load_yaml
from zerohop_snapshot import ENDPOINT_COLUMNS

NOW_NS = 1_000_000_000_000
_UNKNOWN = {"Q": 0, "I": 0, "f": float("nan"), "d": float("nan")}


@dataclass(frozen=True)
class Snapshot:
    endpoint_block: bytes
    row_stride: int
    cold: bytes
    sequence: int = 1
    published_ns: int = NOW_NS
    cold_generation: int = 1

    def read(self, now_ns: int | None = None) -> Snapshot:
        return self


class Cells:
    """No worker, or a fixed number of requests in flight."""

    def __init__(self, in_flight: Sequence[float] = (), tokens: Sequence[float] = ()) -> None:
        self._in_flight, self._tokens = in_flight, tokens
        self._logs: list[PickLog] = []

    def logs(self) -> Sequence[PickLog]:
        return self._logs

    def in_flight(self, generations: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        found = np.zeros(len(generations)), np.zeros(len(generations))
        found[0][: len(self._in_flight)] = self._in_flight
        found[1][: len(self._tokens)] = self._tokens
        return found


def view(count: int, cold: Mapping[str, Any] | None = None, **columns: Sequence[Any]) -> View:
    """A view of ``count`` endpoints; columns not given are unknown, times are NOW_NS, generation 1, flags USED."""
    stride = -(-count // 8) * 8
    given: dict[str, Sequence[Any]] = {
        "observed_ns": [NOW_NS] * count, "detail_observed_ns": [NOW_NS] * count, "flags": [1] * count,
        "generation": [1] * count, **columns,
    }  # fmt: skip
    parts = []
    for column in ENDPOINT_COLUMNS:
        values = [_UNKNOWN[column.code] if value is None else value for value in given.get(column.name, ())]
        values += [_UNKNOWN[column.code]] * (stride - len(values))
        parts.append(struct.pack(f"<{stride}{column.code}", *values))
    names = {
        "v": 1, "adapters": [], "pools": [],
        "endpoints": {row: {"address": f"10.0.{row >> 8}.{row & 255}:8000", "name": f"default/p{row}"} for row in range(count)},
    }  # fmt: skip
    for key, value in (cold or {}).items():
        if key == "endpoints":
            for row, entry in value.items():
                names["endpoints"][row].update(entry)  # type: ignore[index]
        else:
            names[key] = value
    found = Latest(Snapshot(b"".join(parts), stride, msgpack.packb(names))).view(NOW_NS)
    assert found is not None
    return found


def endpoints(
    count: int,
    cold: Mapping[str, Any] | None = None,
    *,
    picks: Sequence[float] = (),
    in_flight: Sequence[float] = (),
    tokens: Sequence[float] = (),
    now_ns: int = NOW_NS,
    **columns: Sequence[Any],
) -> Endpoints:
    """Candidates 0..count-1 of such a view; ``picks`` are picks since."""
    seen = view(count, cold, **columns)
    loads = Loads(Cells(in_flight, tokens))
    loads.settle(seen, now_ns)
    loads.picks[: len(picks)] = picks
    return Endpoints(seen, loads, np.arange(count), now_ns)


class Known:
    """A directory that holds ``matched`` of ``blocks`` blocks of every prompt."""

    def __init__(self, matched: Sequence[int], blocks: int, block_bytes: int = 1024) -> None:
        self._matched, self._count, self._size = matched, blocks, block_bytes

    def look_up(self, llm: LLMRequest, model: str | None, view: View) -> Lookup | None:
        return Lookup([0] * self._count, self._size, {row: count for row, count in enumerate(self._matched) if count})


def request(
    candidates: Endpoints,
    *,
    matched: Sequence[int] = (),
    blocks: int = 0,
    seed: int = 1,
    priority: int = 0,
    **fields: Any,
) -> Request:
    """A request whose prompt has ``blocks`` blocks, of which endpoint i has ``matched[i]``."""
    prefixes = Known(matched, blocks) if blocks else None
    llm = LLMRequest("r", **{"model": "m", "body": b"x" * 400, **fields})
    made = Request(llm, candidates.view, NOW_NS, random=random.Random(seed), prefixes=prefixes)
    made.priority = priority
    return made


def build(type_name: str, parameters: str = "") -> Any:
    """The plugin of a type with parameters given as YAML."""
    plugin_type: PluginType = TYPES[type_name]
    node = load_yaml(parameters, "test") if parameters else None
    return plugin_type.build(plugin_type.values(node))

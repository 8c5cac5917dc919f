"""What the engine plugins of this node wrote into shared memory, put together per endpoint.

Which endpoint a cell belongs to is told by what the plugin says of itself (see `zerohop_engine.whereabouts`): the
endpoint
it was given by name, else one of its host's addresses with one of its bound ports. A loopback address matches a
cell only where agent and server share a network namespace.

Several cells belong to one endpoint when a server has several engines (data-parallel ranks) or several API-server
processes. vLLM hands the statistics of a step to one of its API servers, so for one rank the gauges are those of the
newest cell,
counters are added, and adapters are joined. Over ranks: requests and tokens are added, the share of the KV cache is
the mean, exactly as for a metrics page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from pathlib import Path

from zerohop_agent.signals import Signals
from zerohop_process.address import Address
from zerohop_snapshot import EngineCells, EngineState

__all__ = ["PluginReading", "ServerCells"]

_GAUGES = ("waiting", "running", "kv_cache_usage")
_COUNTERS = (
    "prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits", "preemptions", "steps",
    "ttft_sum_s", "ttft_count", "itl_sum_s", "itl_count",
)  # fmt: skip
_WHOLE = ("block_size", "num_blocks", "max_model_len", "lora_max")
_FLOATS = (*_GAUGES, "kv_capacity_tokens", *_COUNTERS)
_ADDED = frozenset({"waiting", "running", "num_blocks", "kv_capacity_tokens"})


@dataclass(frozen=True, slots=True)
class PluginReading:
    """What the engines behind one endpoint wrote last. `observed_ns` is the end of the newest step, monotonic."""

    signals: Signals
    observed_ns: int


class ServerCells:
    """All live engine cells of a shm directory, by the endpoints that they belong to."""

    def __init__(self, shm_dir: Path) -> None:
        self._cells = EngineCells(shm_dir)
        self._namespace = _network_namespace()
        self._states: tuple[EngineState, ...] = ()
        self._texts: tuple[Mapping[str, object], ...] = ()
        #: where a server can be reached -> places of its engines among the states
        self._by_place: dict[tuple[str, int], list[int]] = {}
        self._readings: dict[Address, PluginReading | None] = {}

    def refresh(self, now_ns: int) -> None:
        """Take in what was written since the last call. Cheap when nothing was: one word is read per cell."""
        states = tuple(self._cells.read(now_ns))
        if len(states) == len(self._states) and all(map(is_, states, self._states)):
            return
        self._states = states
        self._readings.clear()
        texts = tuple(state.text for state in states)
        if len(texts) == len(self._texts) and all(map(is_, texts, self._texts)):
            return  # a cell keeps its text as long as nothing but numbers has changed
        self._texts = texts
        self._by_place = {}
        for number, text in enumerate(texts):
            for place in self._places(text):
                self._by_place.setdefault(place, []).append(number)

    def reading(self, address: object) -> PluginReading | None:
        """Return what the engines behind `address` wrote; None where no live cell is its own."""
        if not isinstance(address, Address) or not self._states:
            return None
        if address not in self._readings:
            host = "127.0.0.1" if address.host in ("localhost", "::1") else address.host
            engines = self._by_place.get((host, address.port))
            self._readings[address] = _combine([self._states[number] for number in engines]) if engines else None
        return self._readings[address]

    def _places(self, text: Mapping[str, object]) -> Iterable[tuple[str, int]]:
        named = _texts(text.get("endpoints"))
        if named:
            yield from (place for name in named if (place := _split(name)) is not None)
            return
        ports = [port for port in _items(text.get("ports")) if isinstance(port, int)]
        hosts = _texts(text.get("hosts"))
        if self._namespace and text.get("netns") == self._namespace:
            hosts = ["127.0.0.1", *hosts]
        yield from ((host, port) for host in hosts for port in ports)


def _split(name: str) -> tuple[str, int] | None:
    host, _, port = name.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else None


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _texts(value: object) -> list[str]:
    return [item for item in _items(value) if isinstance(item, str)]


def _network_namespace() -> int:
    try:
        return Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return 0


def _combine(states: Sequence[EngineState]) -> PluginReading:
    return _of_one(states[0]) if len(states) == 1 else _of_several(states)


def _of_one(state: EngineState) -> PluginReading:
    """The usual case, an engine and a process: a third of the cost, and there is one such reading per step."""
    fields = state.fields
    signals = Signals()
    for name in _FLOATS:
        value = fields[name]
        if value == value:  # false for NaN
            setattr(signals, name, value)
    for name in _WHOLE:
        value = fields[name]
        if value == value:
            setattr(signals, name, int(value))
    if signals.kv_cache_usage is not None:
        signals.kv_cache_usage = min(1.0, max(0.0, signals.kv_cache_usage))
    level = fields["sleep_level"]
    if level == level:
        signals.sleeping = level > 0
    if signals.lora_max is not None:
        signals.lora_running = frozenset(_texts(state.text.get("running")))
        signals.lora_waiting = frozenset(_texts(state.text.get("waiting")))
    return PluginReading(signals, state.written_ns)


def _of_several(states: Sequence[EngineState]) -> PluginReading:
    ranks: dict[float, list[EngineState]] = {}
    for state in states:
        ranks.setdefault(state.fields["engine_index"], []).append(state)
    newest = [max(group, key=lambda state: state.written_ns) for group in ranks.values()]
    signals = Signals()
    for name in (*_GAUGES, "kv_capacity_tokens", *_WHOLE):
        values = [state.fields[name] for state in newest]
        if any(math.isnan(value) for value in values):
            continue
        value = math.fsum(values) if name in _ADDED else max(values)
        if name == "kv_cache_usage":
            value = min(1.0, max(0.0, math.fsum(values) / len(values)))
        setattr(signals, name, int(value) if name in _WHOLE else value)
    for name in _COUNTERS:
        total = math.fsum(state.fields[name] for state in states)
        if not math.isnan(total):
            setattr(signals, name, total)
    levels = [state.fields["sleep_level"] for state in newest]
    if not any(math.isnan(level) for level in levels):
        signals.sleeping = any(level > 0 for level in levels)
    signals.lora_running, signals.lora_waiting = _adapters(states, "running"), _adapters(states, "waiting")
    return PluginReading(signals, max(state.written_ns for state in states))


def _adapters(states: Sequence[EngineState], key: str) -> frozenset[str] | None:
    if all(math.isnan(state.fields["lora_max"]) for state in states):
        return None  # LoRA is off, as on a page without the series
    return frozenset(name for state in states for name in _texts(state.text.get(key)))

"""A small world for scheduling tests: a real snapshot file, real cells, a real prefix directory, and a chosen clock."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack

from zerohop_picker.request.kinds import RequestKind
from zerohop_picker.request.model import LLMRequest
from zerohop_picker.scheduling import load
from zerohop_picker.scheduling.scheduler import StandardScheduler
from zerohop_picker.scheduling_contract import Decision, Refusal
from zerohop_snapshot import Flag, PeerCells, PickerCell, SnapshotReader, SnapshotWriter
from zerohop_snapshot.prefix import PrefixDirectory
from zerohop_snapshot.sessions import SessionTable

MS = 1_000_000
PROFILES = Path(__file__).parents[3] / "manifests/profiles"
#: A beginning of a prompt that is longer than any block of the prefix directory.
LONG = "the same long beginning " * 400
HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
DEFAULTS: Mapping[str, float] = {
    "waiting": 0.0, "running": 0.0, "kv_cache_usage": 0.0, "slowdown": 1.0, "scrape_interval_s": 0.05,
}  # fmt: skip


class World:
    """Endpoints are called 10.0.0.ROW:8000; ``now_ns`` is the clock of everything that asks this object."""

    def __init__(self, shm_dir: Path, capacity: int = 16) -> None:
        self.shm_dir = shm_dir
        self.now_ns = time.monotonic_ns()
        self.capacity = capacity
        self.writer = SnapshotWriter(shm_dir, endpoint_capacity=capacity)
        self.rows: dict[str, int] = {}
        self.cold: dict[str, Any] = {"v": 1, "node": "n", "origins": [], "pools": [], "adapters": [], "endpoints": {}}
        self._closing: list[Any] = [self.writer]

    def add(self, name: str, **values: Any) -> int:
        """Add an endpoint; unknown values are given as None, ``labels``, ``models`` and ``role`` go to the cold map."""
        row = self.writer.add_endpoint(name)
        assert row is not None
        self.rows[name] = row
        extra: dict[str, Any] = {
            key: values.pop(key)
            for key in ("labels", "models", "role", "num_blocks", "block_size", "address")
            if key in values
        }
        address = extra.pop("address", f"10.0.0.{row}:8000")
        self.cold["endpoints"][row] = {"address": address, "name": f"default/{name}", "labels": {}, **extra}
        self.change(name, **{**DEFAULTS, **values})
        return row

    def change(self, name: str, **values: Any) -> None:
        """Set columns of an endpoint and mark its gauges as observed now, unless ``observed_ns`` is given."""
        row = self.rows[name]
        table = self.writer.endpoints
        flags = int(values.pop("flags", 0)) | int(Flag.USED)
        table.set(row, "flags", flags)
        table.set(row, "observed_ns", values.pop("observed_ns", self.now_ns))
        table.set(row, "detail_observed_ns", self.now_ns)
        for column, value in values.items():
            table.set(row, column, float("nan") if value is None else value)

    def publish(self, at_ns: int | None = None) -> None:
        """Publish everything with the cold map as it is now."""
        self.writer.set_cold(msgpack.packb(self.cold))
        self.writer.publish(self.now_ns if at_ns is None else at_ns)

    def address(self, name: str) -> str:
        address: str = self.cold["endpoints"][self.rows[name]]["address"]
        return address

    def name_of(self, address: str) -> str:
        return next(name for name in self.rows if self.address(name) == address)

    def scheduler(
        self, config: str = "", *, worker: str = "w0", seed: int | None = 1, source: str = "config.yaml",
        directory: Any = None, **more: Any,
    ) -> StandardScheduler:  # fmt: skip
        """A worker: its own reader and cell; directory and sessions are the node's."""
        cell = PickerCell(self.shm_dir, worker, self.capacity)
        self._closing.append(cell)
        return StandardScheduler(
            load(config, source), SnapshotReader(self.shm_dir), cell, PeerCells(self.shm_dir),
            directory or PrefixDirectory(self.shm_dir, entries=4096, endpoint_capacity=self.capacity),
            SessionTable(self.shm_dir, slots=256), seed=seed, clock=lambda: self.now_ns, **more,
        )  # fmt: skip

    def pick(self, scheduler: StandardScheduler, request: LLMRequest | None = None) -> str:
        """The name of the first endpoint of a decision."""
        decision = scheduler.schedule(request or chat(), self.now_ns)
        assert isinstance(decision, Decision), decision
        return self.name_of(decision.endpoints[0])

    def refused(self, scheduler: StandardScheduler, request: LLMRequest | None = None) -> Refusal:
        decision = scheduler.schedule(request or chat(), self.now_ns)
        assert isinstance(decision, Refusal), decision
        return decision

    def close(self) -> None:
        for thing in reversed(self._closing):
            thing.close()


def chat(content: str = "hi", model: str = "m", **fields: Any) -> LLMRequest:
    """A chat request; header names are given with underscores or in ``headers``."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": content}]}).encode()
    return LLMRequest(
        request_id="r", path="/v1/chat/completions", kind=RequestKind.CHAT, model=model, body=body, **fields
    )


def pipeline(*plugins: str, scorers: Mapping[str, float] | None = None) -> str:
    """A configuration text with one profile of the given scorers."""
    weights = scorers or {}
    lines = [HEAD, "plugins:\n", *(f"- {plugin}\n" for plugin in plugins), *(f"- type: {name}\n" for name in weights)]
    lines += ["schedulingProfiles:\n- name: default\n  plugins:\n"]
    lines += [f"  - pluginRef: {name}\n    weight: {weight}\n" for name, weight in weights.items()]
    return "".join(lines)

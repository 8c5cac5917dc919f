"""The plugin that vLLM loads (entry point group `vllm.stat_logger_plugins`): one cell per engine of this process.

Switched on by `ZEROHOP_SHM_DIR`. Whatever goes wrong costs one line in vLLM's log and never an exception in vLLM.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerohop_engine.recorder import EngineRecorder
from zerohop_engine.whereabouts import whereabouts
from zerohop_snapshot import EngineCellWriter, SnapshotError, WriterLocked

if TYPE_CHECKING:
    _Base = object
else:
    try:
        # Hears of sleep, and of every engine of a data-parallel server; from vLLM 0.11.1 on.
        from vllm.v1.metrics.loggers import AggregateStatLoggerBase as _Base
    except ImportError:
        try:
            from vllm.v1.metrics.loggers import StatLoggerBase as _Base
        except ImportError:
            _Base = object

__all__ = ["SHM_DIR_VARIABLE", "ZerohopStatLogger"]

SHM_DIR_VARIABLE = "ZEROHOP_SHM_DIR"
GROUP_VARIABLE = "ZEROHOP_SHM_GROUP"
ENGINE_ID_VARIABLE = "ZEROHOP_ENGINE_ID"

_logger = logging.getLogger("vllm.zerohop")


class ZerohopStatLogger(_Base):
    """Receives vLLM's statistics after each engine step and writes them into shared memory.

    vLLM makes one for all engines of a front-end process (`engine_indexes`), older releases one for each
    (`engine_index`).
    """

    def __init__(
        self, vllm_config: Any = None, engine_indexes: Iterable[int] | int = 0, engine_index: int | None = None
    ) -> None:
        self._config = vllm_config
        self._recorders: dict[int, EngineRecorder] = {}
        self._cells: list[EngineCellWriter] = []
        self._tolerant = False
        self._warned: set[str] = set()
        indexes = [engine_indexes] if isinstance(engine_indexes, int) else list(engine_indexes)
        if engine_index is not None:
            indexes = [engine_index]
        shm_dir = os.environ.get(SHM_DIR_VARIABLE)
        if not shm_dir:
            _logger.info("zerohop: %s is not set, so no cell is written", SHM_DIR_VARIABLE)
            return
        self._guard(partial(self._open, Path(shm_dir), indexes))

    def record(
        self,
        scheduler_stats: Any = None,
        iteration_stats: Any = None,
        *others: Any,
        engine_idx: int = 0,
        **_more: Any,
    ) -> None:
        """Write the cell of engine `engine_idx`; called by vLLM after each step."""
        # Before 0.12 the engine's index was the third positional argument.
        index = others[-1] if others and isinstance(others[-1], int) else engine_idx
        recorder = self._recorders.get(index)
        if recorder is None:
            return
        if not self._tolerant:
            try:
                recorder.record(scheduler_stats, iteration_stats)
            except Exception:
                self._tolerant = True
            else:
                return
        self._guard(partial(recorder.record_tolerantly, scheduler_stats, iteration_stats))

    def record_sleep_state(self, is_awake: int = 0, level: int = 0, **_more: Any) -> None:
        """Take in that all engines went to sleep (`is_awake` is 1 then, in spite of its name in vLLM) or woke up."""
        for recorder in list(self._recorders.values()):
            self._guard(partial(recorder.sleep, max(level, 1) if is_awake else 0))

    def log_engine_initialized(self) -> None:
        """Say that the engines are up; the cache's geometry is known from now on."""
        for recorder in list(self._recorders.values()):
            self._guard(partial(self._start, recorder))

    def log(self) -> None:
        """Do nothing: there is nothing to print every ten seconds."""

    def record_admission_rejection(self, reason: str) -> None:
        """Do nothing: rejections are on the metrics page."""

    def close(self) -> None:
        """Remove the cells."""
        for cell in self._cells:
            cell.close()
        self._cells.clear()
        self._recorders.clear()

    def _close_in(self, process: int) -> None:
        if os.getpid() == process:  # not in a child that was forked later
            self.close()

    def _open(self, shm_dir: Path, indexes: list[int]) -> None:
        place = whereabouts()
        for index in indexes:
            cell = self._open_cell(shm_dir, index, place)
            self._cells.append(cell)
            identity = {"engine": "vllm", **place, "models": _served_names(self._config), "process": os.getpid()}
            self._recorders[index] = EngineRecorder(cell, index, identity, self._warn_of_field)
        # A server that stops in order leaves no cell behind; one that crashes leaves it for readers to judge.
        atexit.register(self._close_in, os.getpid())
        _logger.info("zerohop: writing %s", ", ".join(str(cell.path) for cell in self._cells))

    def _open_cell(self, shm_dir: Path, index: int, place: dict[str, object]) -> EngineCellWriter:
        """Open the cell of one engine under a name that a restart finds again, so that crashes leave no heap of
        files."""
        group = os.environ.get(GROUP_VARIABLE) or None
        rank = max(0, int(_get(self._config, "parallel_config._api_process_rank", 0)))
        ports = place["ports"]
        first = f"-{ports[0]}" if isinstance(ports, list) and ports else ""
        stem = os.environ.get(ENGINE_ID_VARIABLE) or f"{socket.gethostname()}{first}"
        stem = "".join(char if char.isalnum() or char in "._-" else "_" for char in stem)[:70]
        name = f"vllm-{stem}-{rank}-{index}"
        try:
            return EngineCellWriter(shm_dir, name, group=group)
        except WriterLocked:  # two servers without a port of their own
            return EngineCellWriter(shm_dir, f"{name}-{os.getpid()}", group=group)

    def _start(self, recorder: EngineRecorder) -> None:
        recorder.start(self._geometry())

    def _geometry(self) -> dict[str, float | None]:
        config = self._config
        block_size, blocks = (_number(config, f"cache_config.{name}") for name in ("block_size", "num_gpu_blocks"))
        engines = max(1, len(self._recorders))
        if blocks is not None:
            blocks /= engines  # vLLM adds up the blocks of all engines that this front-end talks to
        capacity = _number(config, "cache_config.kv_cache_size_tokens")
        if capacity is None and blocks is not None and block_size is not None:
            capacity = blocks * block_size
        return {
            "block_size": block_size,
            "num_blocks": blocks,
            "kv_capacity_tokens": capacity,
            "max_model_len": _number(config, "model_config.max_model_len"),
            "lora_max": _number(config, "lora_config.max_loras"),
        }

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._recorders.clear()
            advice = "" if isinstance(error, SnapshotError) else f" ({type(error).__name__})"
            self._warn(f"no cell is written any more: {error}{advice}")

    def _warn_of_field(self, name: str) -> None:
        self._warn("this vLLM's statistics have another shape than expected; unknown from now on: " + name)

    def _warn(self, text: str) -> None:
        """Log one line for each kind of defect, the first one of it."""
        kind = text.partition(":")[0]
        if kind not in self._warned:
            self._warned.add(kind)
            _logger.warning("zerohop: %s", text)


def _get(config: Any, path: str, default: Any = None) -> Any:
    for name in path.split("."):
        config = getattr(config, name, None)
        if config is None:
            return default
    return config


def _number(config: Any, path: str) -> float | None:
    value = _get(config, path)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _served_names(config: Any) -> list[str]:
    names = _get(config, "model_config.served_model_name") or _get(config, "model_config.model") or []
    return [names] if isinstance(names, str) else [str(name) for name in names]

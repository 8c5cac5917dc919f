"""What a worker decides by: the protocol core over the scheduler, and the files that it follows."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns

from zerohop_picker import scheduling
from zerohop_picker.config import PickerConfig
from zerohop_picker.fronts.calls import EXT_PROC_PATH, Call, Metadata, Push, Services
from zerohop_picker.fronts.limits import Limits
from zerohop_picker.leftovers import remove_dead_cells
from zerohop_picker.metrics import Metrics
from zerohop_picker.models.resources import Resources, load_resources
from zerohop_picker.protocol.core import ProtocolCore
from zerohop_picker.protocol.settings import ProtocolSettings
from zerohop_picker.protocol.stream import ExtProcStream
from zerohop_picker.protocol_metrics import export_counters
from zerohop_process import log
from zerohop_process.errors import ConfigError, reason
from zerohop_process.follow import follow_file
from zerohop_snapshot import SnapshotReader

_logger = log.get("picker")
POOL_METADATA = b"x-zerohop-pool"


class FollowedFile:
    """One file whose newest good content is in use: taken whole, or the old one stays and log and metric say why."""

    def __init__(self, flag: str, path: Path, apply: Callable[[str], None], metrics: FollowedMetrics) -> None:
        self._flag = flag
        self._path = path
        self._apply = apply
        self._metrics = metrics
        self._said = log.OncePerChange()
        self.text = self._read()

    async def follow(self) -> None:
        """Take changes until cancelled."""
        async for text in follow_file(self._path):
            if text is not None:
                self._take(text)

    def look(self) -> None:
        """Take a change now."""
        try:
            self._take(self._read())
        except ConfigError as error:
            self._refused(str(error))

    def _take(self, text: str) -> None:
        if text == self.text:
            return
        try:
            self._apply(text)
        except ConfigError as error:
            self._refused(str(error))
            return
        self.text = text
        self._said.forget("reason")
        self._metrics.count(self._flag, "loaded")
        log.event(_logger, "info", "configuration loaded", source=self._path)

    def _refused(self, why: str) -> None:
        if self._said.log(_logger, "error", "reason", why, "keeping the configuration in use", reason=why):
            self._metrics.count(self._flag, "failed")

    def _read(self) -> str:
        try:
            return self._path.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise ConfigError(f"{self._flag}: {reason(error, self._path)}") from None


class FollowedMetrics:
    """Counts reloads."""

    def __init__(self, metrics: Metrics) -> None:
        self._reloads = metrics.counters(
            "config_reloads", "Attempts to load a changed configuration file.", "flag", "result"
        )

    def count(self, flag: str, result: str) -> None:
        """Count one."""
        self._reloads.labels(flag.lstrip("-"), result).increment()


class Deciding:
    """The core and its scheduler for one worker."""

    def __init__(self, config: PickerConfig, index: int, metrics: Metrics) -> None:
        """Read the pipeline and open the shared memory. Raises: ConfigError."""
        self._said = log.OncePerChange()
        reloads = FollowedMetrics(metrics)
        self._files: list[FollowedFile] = []
        text, source = config.config_text or "", "--config-text" if config.config_text else "default"
        if config.config_file is not None:
            source = str(config.config_file)
            self._files.append(FollowedFile("--config-file", config.config_file, self._swap, reloads))
            text = self._files[0].text
        self._source = source
        remove_dead_cells(config.state_dir or config.shm_dir)
        models = Resources()
        if config.models_file is not None:
            self._models_source = str(config.models_file)
            self._files.append(FollowedFile("--models-file", config.models_file, self._set_models, reloads))
            models = load_resources(self._files[-1].text, self._models_source)
        self._scheduler = scheduling.assemble(
            scheduling.load(text, source), shm_dir=config.shm_dir, state_dir=config.state_dir,
            worker=f"{os.getpid()}-{index}", models=models, metrics=metrics,
        )  # fmt: skip
        self.core = ProtocolCore(self._scheduler, _protocol_settings(config))
        export_counters(self.core.counters, metrics)
        _export_snapshot(SnapshotReader(config.shm_dir, node=False), metrics)

    @property
    def files(self) -> list[FollowedFile]:
        """The files whose changes are to be followed."""
        return self._files

    def services(self, pool: str | None) -> Services:
        """Return the ext-proc service for a listener of `pool`; None lets the gateway name it in initial metadata."""
        core = self.core

        def process(metadata: Metadata, push: Push) -> Call:  # noqa: ARG001
            named = metadata.get(POOL_METADATA)
            return ExtProcStream(core, pool if named is None or pool is not None else named.decode("latin-1"))

        return {EXT_PROC_PATH: process}

    def ready(self, pool: str | None) -> bool:
        """Return whether there is something to choose from."""
        return self._scheduler.ready(pool)

    def heartbeat(self, now_ns: int) -> None:
        """Tell the other workers of this node that we live."""
        self._scheduler.heartbeat(now_ns)

    def report_failures(self) -> None:
        """Log why a scheduler failed, once per reason."""
        failure = self.core.counters.last_failure
        if failure is not None:
            text = f"{type(failure).__name__}: {failure}"
            if self._said.changed("failure", text):
                _logger.error("a decision failed, the fallback policy answered", exc_info=failure)

    def reload(self) -> None:
        """Look at every file now."""
        for file in self._files:
            file.look()

    def close(self) -> None:
        """Leave the shared memory."""
        self._scheduler.close()

    def _swap(self, text: str) -> None:
        self._scheduler.swap(scheduling.load(text, self._source))

    def _set_models(self, text: str) -> None:
        self._scheduler.set_models(load_resources(text, self._models_source))


def _protocol_settings(config: PickerConfig) -> ProtocolSettings:
    return ProtocolSettings(
        response=config.response,
        max_request_bytes=config.max_request_bytes,
        max_held_bytes=2 * Limits.for_requests(config.max_request_bytes).held_bytes,  # the front's own cap comes first
        deadline_ns=config.deadline,
        conformance_headers=config.conformance_headers,
        ask_for_body=config.ask_for_body,
        ends_in_one_write=config.front == "native",
    )


def _export_snapshot(reader: SnapshotReader, metrics: Metrics) -> None:
    def age_s() -> float:
        snapshot = reader.read()
        return math.nan if snapshot is None else (monotonic_ns() - snapshot.published_ns) / 1e9

    metrics.gauge("snapshot_age_seconds", "Age of the newest snapshot; NaN without one.", age_s)
    metrics.gauge("snapshot_readable", "1 while the snapshot file is whole and ours.", lambda: reader.state == "ok")

"""What a person can set for `zerohop picker`: each setting once, for the command line and for `--config FILE` alike."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from zerohop_picker.fronts.sockets import SocketAccess
from zerohop_process import strict
from zerohop_process.address import Address, Listen
from zerohop_process.errors import ConfigError, reason
from zerohop_process.spelling import as_known
from zerohop_process.units import duration_ns, size_bytes

Read = Callable[[str, str], Any]  # (text, place) -> value; raises ConfigError
_POOL_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class PoolListen:
    """A listener of one pool of several."""

    pool: str
    listen: Listen


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerConfig:
    """Every setting, checked. Field names are the flags' with underscores; durations are ns, sizes bytes."""

    shm_dir: Path = Path("/dev/shm/zerohop")  # noqa: S108
    state_dir: Path | None = None
    listen: tuple[Listen, ...] = ()
    pool: tuple[PoolListen, ...] = ()
    workers: int = 1
    front: Literal["native", "grpcio"] = "native"
    health_address: Address | None = None
    metrics_address: Address | None = None
    config_file: Path | None = None
    config_text: str | None = None
    models_file: Path | None = None
    deadline: int = 50_000_000
    response: Literal["skip", "observe"] = "skip"
    max_request_bytes: int = 16 * 1024 * 1024
    drain_timeout: int = 30_000_000_000
    secure_serving: bool = False
    cert_path: Path | None = None
    client_ca: Path | None = None
    socket_mode: int = 0o660
    socket_group: str | None = None
    health_checking: bool = False
    ask_for_body: bool = False
    conformance_headers: bool = False
    field_metric_names: bool = False
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def access(self) -> SocketAccess:
        """Who may connect to the Unix sockets."""
        return SocketAccess(self.socket_mode, self.socket_group)

    def __post_init__(self) -> None:
        if not self.listen and not self.pool:
            raise ConfigError("--listen is missing; write --listen unix:/run/zerohop/picker.sock or --listen :9002")
        if self.config_file is not None and self.config_text is not None:
            raise ConfigError("--config-file and --config-text exclude each other; keep one")
        if (self.cert_path or self.client_ca) and not self.secure_serving:
            raise ConfigError("--cert-path and --client-ca need --secure-serving; add it")
        places = [*self.listen, *(entry.listen for entry in self.pool)]
        for place in places:
            if places.count(place) > 1 and not (place.address and place.address.port == 0):
                raise ConfigError(f"{place} is given twice; each listener needs an address of its own")
            if self.workers > 1 and place.address is not None and place.address.port == 0:
                raise ConfigError(f"--listen {place}: several workers need a fixed port; give one, or --workers 1")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting."""

    flag: str
    read: Read
    help: str
    metavar: str | None = None
    many: bool = False
    switch: bool = False
    choices: Sequence[str] = field(default=())

    @property
    def name(self) -> str:
        """The name as an attribute."""
        return self.flag.replace("-", "_")


def _text(text: str, place: str) -> str:  # noqa: ARG001
    return text


def _path(text: str, place: str) -> Path:
    if not text:
        raise ConfigError(f"{place}: a path is missing")
    return Path(text)


def _duration(text: str, place: str) -> int:
    return duration_ns(text, place=place)


def _size(text: str, place: str) -> int:
    return size_bytes(text, place=place)


def _workers(text: str, place: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise ConfigError(f"{place}: {text!r} is no number of workers; write 1 to 64")
    return int(text)


def _mode(text: str, place: str) -> int:
    if not re.fullmatch(r"(0o?)?[0-7]{3}", text):
        raise ConfigError(f"{place}: {text!r} is no file mode; write it like 0660 or 0666")
    return int(text[-3:], 8)


def _pool(text: str, place: str) -> PoolListen:
    name, equals, where = text.partition("=")
    if not equals or not _POOL_NAME.fullmatch(name):
        raise ConfigError(f"{place}: {text!r} is no pool; write NAMESPACE/NAME=unix:PATH or NAMESPACE/NAME=HOST:PORT")
    return PoolListen(name, _listen(where, place))


def _listen(text: str, place: str) -> Listen:
    return Listen.parse(_every_address(text), place)


def _address(text: str, place: str) -> Address:
    return Address.parse(_every_address(text), place)


def _every_address(text: str) -> str:
    """Return `:9002` as every address of this host, IPv6 where it has it."""
    if not text.startswith(":"):
        return text
    return f"[::]{text}" if socket.has_dualstack_ipv6() else f"0.0.0.0{text}"


def _switch(text: str, place: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{place}: {text!r} is neither true nor false")
    return text.lower() == "true"


OPTIONS = (
    Option("shm-dir", _path, "directory of the shared-memory files (default /dev/shm/zerohop)", "DIR"),
    Option("state-dir", _path, "directory of the files that the picker writes, where --shm-dir is read-only "
           "(default: --shm-dir)", "DIR"),
    Option("listen", _listen, "where Envoy connects; may be repeated. Worker i > 0 listens on PATH.i, and all "
           "workers share a TCP port", "unix:PATH|HOST:PORT", many=True),
    Option("pool", _pool, "one more listener, whose streams belong to this pool; may be repeated. Elsewhere the "
           "initial metadata x-zerohop-pool names the pool", "NS/NAME=WHERE", many=True),
    Option("workers", _workers, "processes that serve (default 1)", "N"),
    Option("front", _text, "native (libnghttp2, default) or grpcio", choices=("native", "grpcio")),
    Option("health-address", _address, "serve the gRPC health service here", "HOST:PORT"),
    Option("metrics-address", _address, "serve Prometheus metrics here", "HOST:PORT"),
    Option("config-file", _path, "EndpointPickerConfig to schedule by; reloaded when it changes and on SIGHUP", "FILE"),
    Option("config-text", _text, "EndpointPickerConfig as text", "YAML"),
    Option("models-file", _path, "InferenceModel, InferenceObjective and InferenceModelRewrite objects as YAML; "
           "reloaded like --config-file", "FILE"),
    Option("deadline", _duration, "decision time after which the fallback policy answers (default 50ms)", "DURATION"),
    Option("response", _text, "observe responses, or skip them as early as the gateway's mode allows (default skip)",
           choices=("skip", "observe")),
    Option("max-request-bytes", _size, "larger request bodies are answered with 413 (default 16MiB)", "SIZE"),
    Option("drain-timeout", _duration, "how long open streams may take to end after SIGTERM (default 30s)", "DURATION"),
    Option("secure-serving", _switch, "serve TLS, self-signed unless --cert-path is given", switch=True),
    Option("cert-path", _path, "folder with tls.crt and tls.key, followed when it changes", "DIR"),
    Option("client-ca", _path, "demand client certificates of this CA", "FILE"),
    Option("socket-mode", _mode, "mode of Unix sockets; connecting needs write permission (default 0660)", "MODE"),
    Option("socket-group", _text, "group of Unix sockets, by name or number", "GROUP"),
    Option("health-checking", _switch, "serve the health service on the ext-proc listeners too", switch=True),
    Option("ask-for-body", _switch, "where the gateway shows no body and allows mode_override, ask for the body of "
           "requests whose path says that it matters", switch=True),
    Option("conformance-headers", _switch, "obey test-epp-endpoint-selection and set the headers that the conformance "
           "tests of Gateway API Inference Extension look at", switch=True),
    Option("field-metric-names", _switch, "also export metrics under the names llm_d_epp_* and inference_* that "
           "existing dashboards use", switch=True),
    Option("log-format", _text, "text (default) or json", choices=("text", "json")),
    Option("log-level", _text, "debug, info (default), warning or error",
           choices=("debug", "info", "warning", "error")),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every setting as a flag."""
    parser.formatter_class = argparse.HelpFormatter  # the help texts name their defaults themselves
    parser.add_argument("--config", metavar="FILE", help="YAML file with the same settings by the same names")
    for option in OPTIONS:
        keywords: dict[str, Any] = {"help": option.help, "default": argparse.SUPPRESS, "dest": option.name}
        if option.switch:
            keywords |= {"nargs": "?", "const": "true", "metavar": "true|false"}
        elif option.choices:
            keywords |= {"choices": option.choices}
        else:
            keywords |= {"metavar": option.metavar}
        if option.many:
            keywords |= {"action": "append"}
        parser.add_argument(f"--{option.flag}", **keywords)


def from_arguments(arguments: argparse.Namespace) -> PickerConfig:
    """Return the settings of the command line over those of `--config`. Raises: ConfigError."""
    path = getattr(arguments, "config", None)
    values = {} if path is None else read_file(Path(path))
    for option in OPTIONS:
        given = getattr(arguments, option.name, None)
        if given is None:
            continue
        place = f"--{option.flag}"
        texts = given if option.many else [given]
        read = [option.read(text, place) for text in texts]
        values[option.name] = tuple(read) if option.many else read[0]
    return PickerConfig(**values)


def read_file(path: Path) -> dict[str, Any]:
    """Return the settings in a YAML file. Raises: ConfigError, naming file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--config: {reason(error, path)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config: {path} is not UTF-8 text") from None
    return read_text(text, str(path))


def read_text(text: str, source: str) -> dict[str, Any]:
    """Return the settings in YAML `text`. Raises: ConfigError."""
    fields = strict.Fields(as_known(strict.load_yaml(text, source), [option.flag for option in OPTIONS]), source)
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if fields.has(option.flag):
            values[option.name] = fields.take(option.flag, _reader(option))
    fields.finish()
    return values


def _reader(option: Option) -> Callable[[strict.Node], Any]:
    if option.switch:
        return strict.boolean
    if option.choices:
        return strict.one_of(*option.choices)

    def one(node: strict.Node) -> Any:
        value = node.plain()
        if isinstance(value, bool | list | dict):
            raise node.error(f"expected one value, found {value!r}")
        if option.name == "socket_mode" and isinstance(value, int):
            raise node.error('write the mode in quotes, like "0660"')  # YAML would read 0660 as 432
        return option.read(str(value), node.place)

    if option.many:
        return lambda node: tuple(one(item) for item in (node.items() if isinstance(node.value, list) else [node]))
    return one


def as_words(config: PickerConfig) -> list[str]:
    """Return the command line that says what `config` says, for starting a worker with it."""
    words: list[str] = []
    for option in OPTIONS:
        value = getattr(config, option.name)
        values = value if option.many else [value]
        words += [f"--{option.flag}={_said(option, one)}" for one in values if one is not None]
    return words


def _said(option: Option, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, PoolListen):
        return f"{value.pool}={value.listen}"
    if option.read is _duration:
        return f"{value}ns"
    return f"{value:04o}" if option.read is _mode else str(value)

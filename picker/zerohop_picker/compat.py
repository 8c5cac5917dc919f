"""The flags of llm-d-router and of the Gateway API Inference Extension's picker, said in ours.

One table. `prepare` is what a command line goes through before our own parser sees it: a line that uses any of those
flags is rewritten (with the defaults that such a picker has: ports 9002, 9003 and 9090, TLS on), any other line is left
as it is. Go's way of writing flags is understood: `-flag value`, `--flag=value`, `-bool`, `--bool=false`.

What belongs to the agent (which pool, how to read metrics) is in `Translation.agent`: `zerohop epp` runs both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from zerohop_process.errors import ConfigError

#: Go's strconv.ParseBool.
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))
_PORT = re.compile(r"^[0-9]{1,5}$")
#: Verbosity at which llm-d logs for debugging (2 default, 3 verbose, 4 debug, 5 trace).
_DEBUG_VERBOSITY = 4

Kind = Literal["value", "bool"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of theirs. `ours` says what becomes of it, for people; `docs/migration.md` lists the same."""

    name: str
    kind: Kind
    ours: str
    #: We have a flag of the same name, so that its use alone does not mean a foreign command line.
    shared: bool = False


FLAGS: tuple[Flag, ...] = (
    Flag("pool-name", "value", "agent --pool; picker --pool NS/NAME=:PORT"),
    Flag("pool-namespace", "value", "agent --pool and --namespaces; default: $NAMESPACE, else default"),
    Flag("pool-group", "value", "agent --pool-group"),
    Flag("endpoint-selector", "value", "agent --pod-selector"),
    Flag("endpoint-target-ports", "value", "agent --target-ports"),
    Flag("grpc-port", "value", "picker --listen or --pool; default 9002"),
    Flag("grpc-health-port", "value", "picker --health-address; default 9003"),
    Flag("metrics-port", "value", "picker --metrics-address; default 9090"),
    Flag("config-file", "value", "picker --config-file", shared=True),
    Flag("config-text", "value", "picker --config-text", shared=True),
    Flag("secure-serving", "bool", "picker --secure-serving; default true", shared=True),
    Flag("cert-path", "value", "picker --cert-path", shared=True),
    Flag("enable-cert-reload", "bool", "always on"),
    Flag("tls-min-version", "value", "accepted when it is VersionTLS12; a higher one is refused"),
    Flag("tls-cipher-suites", "value", "not used: OpenSSL's default suites"),
    Flag("health-checking", "bool", "picker --health-checking", shared=True),
    Flag("drain-timeout", "value", "picker --drain-timeout", shared=True),
    Flag("grpc-max-recv-msg-size", "value", "picker --max-request-bytes"),
    Flag("grpc-max-send-msg-size", "value", "not needed: replies are cut into 62,000-byte pieces"),
    Flag("refresh-metrics-interval", "value", "agent --scrape-interval"),
    Flag("refresh-prometheus-metrics-interval", "value", "not needed: metrics are made when they are read"),
    Flag("metrics-staleness-threshold", "value", "not used: every value carries its age"),
    Flag("model-server-metrics-scheme", "value", "agent --model-server-scheme"),
    Flag("model-server-metrics-path", "value", "agent --model-server-path"),
    Flag("model-server-metrics-port", "value", "agent --model-server-port (0: the endpoint's)"),
    Flag(
        "model-server-metrics-https-insecure-skip-verify",
        "bool",
        "not used: metrics pages are read without verification",
    ),
    Flag("total-queued-requests-metric", "value", "not used: the engine is recognised by its page"),
    Flag("total-running-requests-metric", "value", "not used: the engine is recognised by its page"),
    Flag("kv-cache-usage-percentage-metric", "value", "not used: the engine is recognised by its page"),
    Flag("lora-info-metric", "value", "not used: the engine is recognised by its page"),
    Flag("cache-info-metric", "value", "not used: the engine is recognised by its page"),
    Flag("disable-endpoint-subset-filter", "bool", "accepted when false; a subset hint is always obeyed"),
    Flag("emit-endpoint-scores", "bool", "not used"),
    Flag("allow-experimental-plugins", "bool", "not needed"),
    Flag("ha-enable-leader-election", "bool", "not needed: every replica serves"),
    Flag("tracing", "bool", "not used"),
    Flag("enable-pprof", "bool", "not used"),
    Flag("enable-grpc-stream-metrics", "bool", "not needed: stream metrics are always on"),
    Flag("metrics-endpoint-auth", "bool", "not used: guard the metrics port with a NetworkPolicy"),
    Flag("metrics-client-ca-file", "value", "not used"),
    Flag("metrics-cert-dir", "value", "not used"),
    Flag("kubeconfig", "value", "agent --kubeconfig"),
    Flag("v", "value", "log level: 4 and more is debug"),
    Flag("zap-encoder", "value", "--log-format (json, or text for console)"),
    Flag("zap-log-level", "value", "--log-level"),
    Flag("zap-devel", "bool", "not used"),
    Flag("zap-stacktrace-level", "value", "not used"),
    Flag("zap-time-encoding", "value", "not used: RFC 3339"),
)
_BY_NAME = {flag.name: flag for flag in FLAGS}


@dataclass(slots=True)
class Translation:
    """Their command line in our words: for a picker, and for the agent that it needs beside it."""

    picker: list[str] = field(default_factory=list)
    agent: list[str] = field(default_factory=list)
    #: One sentence for each thing that changes meaning; to be logged.
    notes: list[str] = field(default_factory=list)


def is_foreign(words: Iterable[str]) -> bool:
    """True when the command line uses a flag that only those pickers have, or Go's single dash."""
    for word in words:
        if word == "--":
            return False
        name, _ = _split(word)
        if name is not None and (not _BY_NAME[name].shared or not word.startswith("--")):
            return True
    return False


def prepare(words: Sequence[str]) -> list[str]:
    """The command line for our picker. Raises: ConfigError naming the flag."""
    return translate(words).picker if is_foreign(words) else list(words)


def translate(words: Sequence[str]) -> Translation:
    """Their command line in ours; words that are not theirs go to the picker unchanged.

    Raises: ConfigError naming the flag.
    """
    given, rest = _read(words)
    result = Translation(picker=rest)
    for note in (_check(name, value) for name, value in given.items()):
        if note:
            result.notes.append(note)
    pool = _pool(given, result.agent)
    _serving(given, result.picker, pool)
    _logging(given, result)
    for theirs, ours in (
        ("config-file", "config-file"), ("config-text", "config-text"), ("cert-path", "cert-path"),
        ("drain-timeout", "drain-timeout"), ("grpc-max-recv-msg-size", "max-request-bytes"),
    ):  # fmt: skip
        if given.get(theirs):
            result.picker.append(f"--{ours}={given[theirs]}")
    for theirs, ours in (
        ("pool-group", "pool-group"), ("kubeconfig", "kubeconfig"), ("refresh-metrics-interval", "scrape-interval"),
        ("model-server-metrics-scheme", "model-server-scheme"), ("model-server-metrics-path", "model-server-path"),
    ):  # fmt: skip
        if given.get(theirs):
            result.agent.append(f"--{ours}={given[theirs]}")
    port = given.get("model-server-metrics-port", "0")
    if port not in ("0", ""):
        result.agent.append(f"--model-server-port={port}")
    return result


def _split(word: str) -> tuple[str | None, str | None]:
    """Name and inline value of one of their flags; (None, None) for any other word."""
    match = re.match(r"^--?([a-zA-Z][-a-zA-Z0-9]*)(?:=(.*))?$", word, re.DOTALL)
    if match is None or match[1] not in _BY_NAME:
        return None, None
    return match[1], match[2]


def _read(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Their flags by name (the last one counts), and the words that are not theirs."""
    given: dict[str, str] = {}
    rest: list[str] = []
    position = 0
    while position < len(words):
        name, value = _split(words[position])
        if name is None:
            rest.append(words[position])
            # The value of one of our flags is not looked at, whatever it looks like.
            if words[position].startswith("--") and "=" not in words[position] and position + 1 < len(words):
                follower = words[position + 1]
                if not follower.startswith("-"):
                    rest.append(follower)
                    position += 1
            position += 1
            continue
        position += 1
        if _BY_NAME[name].kind == "bool":
            given[name] = _boolean(name, "true" if value is None else value)
            continue
        if value is None:
            if position == len(words):
                raise ConfigError(f"--{name}: a value is missing")
            value, position = words[position], position + 1
        given[name] = value
    return given, rest


def _boolean(name: str, text: str) -> str:
    if text in _TRUE:
        return "true"
    if text in _FALSE:
        return "false"
    raise ConfigError(f"--{name}: {text!r} is neither true nor false")


def _port(given: dict[str, str], name: str, default: str) -> str:
    text = given.get(name, default)
    if not _PORT.match(text) or not 0 <= int(text) <= 65535:
        raise ConfigError(f"--{name}: {text!r} is not a port (1 to 65535)")
    return text


def _pool(given: dict[str, str], agent: list[str]) -> str | None:
    """Adds the agent's flags for the pool; returns `namespace/name` of a pool that has a name."""
    name, selector = given.get("pool-name", ""), given.get("endpoint-selector", "")
    if name and selector:
        raise ConfigError("--pool-name and --endpoint-selector exclude each other; keep one")
    if bool(selector) != bool(given.get("endpoint-target-ports")) and not name:
        raise ConfigError("--endpoint-selector and --endpoint-target-ports go together; give both")
    namespace = given.get("pool-namespace") or os.environ.get("NAMESPACE") or "default"
    if not name and not selector:
        return None
    pool = f"{namespace}/{name or 'static'}"
    agent += ["--discovery=api", "--scope=pool", f"--namespaces={namespace}", f"--pool={pool}"]
    if selector:
        agent += [f"--pod-selector={selector}", f"--target-ports={given['endpoint-target-ports']}"]
    return pool


def _serving(given: dict[str, str], picker: list[str], pool: str | None) -> None:
    own = {word.partition("=")[0] for word in picker if word.startswith("--")}
    port = _port(given, "grpc-port", "9002")
    if not own & {"--listen", "--pool"} or "grpc-port" in given:
        picker.append(f"--pool={pool}=:{port}" if pool else f"--listen=:{port}")
    if "--health-address" not in own:
        picker.append(f"--health-address=:{_port(given, 'grpc-health-port', '9003')}")
    if "--metrics-address" not in own:
        picker.append(f"--metrics-address=:{_port(given, 'metrics-port', '9090')}")
    picker.append(f"--secure-serving={given.get('secure-serving', 'true')}")
    if given.get("health-checking") == "true":
        picker.append("--health-checking=true")
    if given.get("cert-path") and given.get("secure-serving") == "false":
        raise ConfigError("--cert-path needs --secure-serving; remove one of them")


def _logging(given: dict[str, str], result: Translation) -> None:
    flags: list[str] = []
    encoder = given.get("zap-encoder")
    if encoder is not None:
        if encoder not in ("json", "console"):
            raise ConfigError(f"--zap-encoder: {encoder!r} is neither json nor console")
        flags.append(f"--log-format={'json' if encoder == 'json' else 'text'}")
    level = _level(given)
    if level is not None:
        flags.append(f"--log-level={level}")
    result.picker += flags
    result.agent += flags


def _level(given: dict[str, str]) -> str | None:
    named = given.get("zap-log-level", "")
    if named in ("debug", "info", "error"):
        return named
    text = named or given.get("v", "")
    if not text:
        return None
    if not re.fullmatch(r"-?[0-9]{1,3}", text):
        flag = "--zap-log-level" if named else "-v"
        raise ConfigError(f"{flag}: {text!r} is not a level; write a number such as 2, or debug, info, error")
    return "debug" if int(text) >= _DEBUG_VERBOSITY else "info"


def _minimum_tls(value: str) -> str | None:
    if value in ("", "VersionTLS10", "VersionTLS11", "VersionTLS12"):
        return None
    raise ConfigError(
        f"--tls-min-version: {value} cannot be promised: TLS 1.2 and newer are served; write VersionTLS12"
    )


def _subset(value: str) -> str | None:
    if value == "true":
        return "--disable-endpoint-subset-filter has no effect: a subset hint of the gateway is always obeyed"
    return None


def _auth(value: str) -> str | None:
    if value == "true":
        return "--metrics-endpoint-auth has no effect: the metrics port is open, guard it with a NetworkPolicy"
    return None


def _metric_name(default: str) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        if value in ("", default):
            return None
        return f"the metric name {value!r} is not used: describe the engine in a mapping instead (docs/engines.md)"

    return check


_CHECKS: dict[str, Callable[[str], str | None]] = {
    "tls-min-version": _minimum_tls,
    "disable-endpoint-subset-filter": _subset,
    "metrics-endpoint-auth": _auth,
    "total-queued-requests-metric": _metric_name("vllm:num_requests_waiting"),
    "total-running-requests-metric": _metric_name("vllm:num_requests_running"),
    "kv-cache-usage-percentage-metric": _metric_name("vllm:kv_cache_usage_perc"),
    "lora-info-metric": _metric_name("vllm:lora_requests_info"),
    "cache-info-metric": _metric_name("vllm:cache_config_info"),
}


def _check(name: str, value: str) -> str | None:
    """A note where a flag changes meaning. Raises: ConfigError where it would promise what is not so."""
    check = _CHECKS.get(name)
    return check(value) if check is not None else None

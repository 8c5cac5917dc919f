"""Their command line said in ours, for a picker and for the agent beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zerohop_picker.compat.flags import BY_NAME
from zerohop_picker.compat.meanings import check_meaning
from zerohop_picker.compat.words import read, split
from zerohop_process.errors import ConfigError

_PORT = re.compile(r"^[0-9]{1,5}$")
#: Verbosity at which llm-d logs for debugging (2 default, 3 verbose, 4 debug, 5 trace).
_DEBUG_VERBOSITY = 4
#: Flags whose values mean the same to our picker, and what it calls them; then those of the agent.
_PICKER_NAMES = {
    "config-file": "config-file",
    "config-text": "config-text",
    "cert-path": "cert-path",
    "drain-timeout": "drain-timeout",
    "grpc-max-recv-msg-size": "max-request-bytes",
}
_AGENT_NAMES = {
    "pool-group": "pool-group",
    "kubeconfig": "kubeconfig",
    "refresh-metrics-interval": "scrape-interval",
    "model-server-metrics-scheme": "model-server-scheme",
    "model-server-metrics-path": "model-server-path",
}


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
        name, _ = split(word)
        if name is not None and (not BY_NAME[name].shared or not word.startswith("--")):
            return True
    return False


def prepare(words: Sequence[str]) -> list[str]:
    """The command line for our picker. Raises: ConfigError naming the flag."""
    return translate(words).picker if is_foreign(words) else list(words)


def translate(words: Sequence[str]) -> Translation:
    """Their command line in ours; words that are not theirs go to the picker unchanged.

    Raises: ConfigError naming the flag.
    """
    given, rest = read(words)
    result = Translation(picker=rest)
    for note in (check_meaning(name, value) for name, value in given.items()):
        if note:
            result.notes.append(note)
    pool = _pool(given, result.agent)
    _serving(given, result.picker, pool)
    _logging(given, result)
    result.picker += _renamed(given, _PICKER_NAMES)
    result.agent += _renamed(given, _AGENT_NAMES)
    port = given.get("model-server-metrics-port", "0")
    if port not in ("0", ""):
        result.agent.append(f"--model-server-port={port}")
    return result


def _renamed(given: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    return [f"--{ours}={given[theirs]}" for theirs, ours in names.items() if given.get(theirs)]


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

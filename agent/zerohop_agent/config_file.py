"""A YAML file that stands between flags and their defaults: its fields are named and read as the flags are."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerohop_process.errors import ConfigError, reason
from zerohop_process.spelling import as_known
from zerohop_process.strict import Node, did_you_mean, load_yaml
from zerohop_process.units import duration, duration_text, size, size_text

#: Sections of the file that no flag can say.
_SECTIONS = ("endpoints", "pools", "mappings", "gpu", "model_servers")


@dataclass(frozen=True, slots=True)
class Option:
    """One flag: its default, and how a field of the file is read as its value."""

    action: argparse.Action
    default: Any

    @property
    def repeats(self) -> bool:
        """True for a flag that may be given several times."""
        return isinstance(self.default, list)

    def read(self, node: Node) -> Any:
        """The flag's value as the file gives it. Raises: ConfigError naming file and line."""
        value = node.plain()
        if self.repeats:
            return [self._one(item) for item in node.items()] if isinstance(value, list) else [self._one(node)]
        if isinstance(value, list):
            if self.action.type is not None or any(not isinstance(item, str) for item in value):
                raise node.error("expected one value, found a list")
            return ",".join(value)
        return self._one(node)

    def _one(self, node: Node) -> Any:
        value = node.plain()
        if isinstance(self.default, bool):
            if not isinstance(value, bool):
                raise node.error("expected true or false")
            return value
        if isinstance(value, bool):
            # YAML reads `off` as false; both `gpu: off` and `metrics_address: off` mean the word.
            value = "on" if value else "off"
        if isinstance(value, dict) or value is None:
            raise node.error("expected a value")
        convert = self.action.type
        if convert is file_mode and not isinstance(value, str):
            # YAML reads 0640 as the number 416, and 640 as another one.
            raise node.error("put the mode in quotes, like '0640'")
        try:
            found = convert(str(value)) if callable(convert) else str(value)
        except (argparse.ArgumentTypeError, ValueError, ConfigError) as error:
            raise node.error(str(error) or f"{value!r} cannot be used here") from None
        choices = self.action.choices
        if choices is not None and found not in choices:
            raise node.error(f"{value!r} is not one of {', '.join(map(str, choices))}")
        return found


def hold_defaults_back(parser: argparse.ArgumentParser) -> None:
    """Leave flags that were not given out of the namespace, so that the file can stand between flag and default."""
    options: dict[str, Option] = {}
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of them
        if action.dest == "help":
            continue
        if action.dest == "config":
            action.default = argparse.SUPPRESS
            continue
        options[action.dest] = Option(action, action.default)
        shown = _shown(action.default, action.type)
        if shown and action.help and "default" not in action.help:
            action.help += f" (default {shown})"
        action.default = argparse.SUPPRESS
    parser.set_defaults(options=options)


def with_file(args: argparse.Namespace) -> tuple[argparse.Namespace, dict[str, Node]]:
    """A value for every flag: as it was given, else as the file says, else its default; and the file's sections.

    Raises: ConfigError naming the file and line.
    """
    options: dict[str, Option] = args.options
    values = {name: option.default for name, option in options.items()}
    sections: dict[str, Node] = {}
    path: Path | None = getattr(args, "config", None)
    if path is not None:
        given, sections = _read(path, options)
        values.update(given)
    for name, option in options.items():
        if hasattr(args, name):
            explicit = getattr(args, name)
            values[name] = [*values[name], *explicit] if option.repeats else explicit
    return argparse.Namespace(**values), sections


def file_mode(text: str) -> int:
    """Permissions in octal, as the type of a flag."""
    if not text.isascii() or not text.isdigit() or not 0o400 <= int(text, 8) <= 0o777:
        raise argparse.ArgumentTypeError(f"{text!r} is not a file mode; write it like 0640")
    return int(text, 8)


def _shown(default: object, kind: object) -> str:
    if default is None or default in ("", [], False, True):
        return ""
    if kind is duration:
        return duration_text(int(str(default)))
    if kind is size:
        return size_text(float(str(default)))
    if kind is file_mode:
        return f"{default:04o}"
    return str(default)


def _read(path: Path, options: Mapping[str, Option]) -> tuple[dict[str, Any], dict[str, Node]]:
    """The flags' values and the other sections that the file has."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--config: {reason(error, path)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config: {path}: is not UTF-8 text") from None
    values: dict[str, Any] = {}
    sections: dict[str, Node] = {}
    for name, node in as_known(load_yaml(text, str(path)), options).members().items():
        if name in _SECTIONS and (name not in options or isinstance(node.value, dict)):
            sections[name] = node
        elif name in options:
            if node.value is not None:
                values[name] = options[name].read(node)
        else:
            known = [*options, *_SECTIONS]
            raise ConfigError(f"{node.source}:{node.line}: unknown field {name!r}{did_you_mean(name, known)}")
    return values, sections

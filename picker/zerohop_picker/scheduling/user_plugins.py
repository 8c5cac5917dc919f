"""Plugins that are not ours: a function in a module, in a file, or behind an entry point.

A configuration names one as its ``type``: ``package.module:function``, ``path/to/file.py:function`` (relative to the
configuration file), or the name of an entry point in the group ``zerohop.plugins``. See docs/plugins.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from zerohop_picker.scheduling.plugin import Kind, Parameter, PluginType, bound
from zerohop_process.errors import ConfigError
from zerohop_process.strict import REQUIRED, Node, boolean, did_you_mean, integer, number, plain, text

GROUP: Final = "zerohop.plugins"
#: A user's plugin that takes longer than this is cut off and has no say in that decision.
DEFAULT_BUDGET_MS: Final = 5.0
_KINDS: Final = ("filter", "scorer")
_serial = itertools.count()


def is_user_plugin(name: str) -> bool:
    """Return whether a type's name is that of a user's plugin."""
    return ":" in name or any(entry.name == name for entry in entry_points(group=GROUP))


def user_plugin_type(name: str, place: str, source: str) -> tuple[PluginType, Path | None]:
    """Return the plugin type behind ``name``, and the file to watch if it comes from one. Raises: ConfigError."""
    target, _, attribute = name.rpartition(":")
    path: Path | None = None
    if not target:
        entry = next(entry for entry in entry_points(group=GROUP) if entry.name == name)
        function = _guarded(entry.load, place, f"entry point {name!r}")
    elif target.endswith(".py"):
        path = _resolve(target, source)
        if not path.is_file():
            raise ConfigError(f"{place}: there is no file {path}; give its path from the configuration file's folder")
        module = _guarded(lambda: _run_file(path), place, str(path))
        function = _attribute(module, attribute, place, str(path))
    else:
        module = _guarded(lambda: importlib.import_module(target), place, f"module {target!r}")
        function = _attribute(module, attribute, place, f"module {target!r}")
    if not callable(function):
        raise ConfigError(f"{place}: {name!r} is not a function")
    return _described(name, function, place), path


def _resolve(target: str, source: str) -> Path:
    path = Path(target).expanduser()
    folder = Path(source).parent if Path(source).is_file() else Path.cwd()
    return path if path.is_absolute() else (folder / path).resolve()


def _run_file(path: Path) -> Any:
    # A name of its own for every load: a reload must not see what an earlier one left behind.
    name = f"zerohop_user_plugin_{next(_serial)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    source = path.read_bytes()
    # Compiled here and not by the loader: a cached .pyc within the file system's time resolution would hide an edit.
    exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102 - running the user's file is the point
    return module


def _guarded(action: Callable[[], Any], place: str, what: str) -> Any:
    try:
        return action()
    except ConfigError:
        raise
    except SyntaxError as error:
        raise ConfigError(f"{place}: {what}: line {error.lineno}: {error.msg}") from None
    except Exception as error:
        frames = traceback.extract_tb(sys.exc_info()[2])
        line = f": line {frames[-1].lineno}" if frames else ""
        raise ConfigError(f"{place}: {what}{line}: {type(error).__name__}: {error}") from None


def _attribute(module: Any, attribute: str, place: str, what: str) -> Any:
    function = getattr(module, attribute, None)
    if function is None:
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ConfigError(f"{place}: {what} has no function {attribute!r}{did_you_mean(attribute, names)}")
    return function


def _described(name: str, function: Any, place: str) -> PluginType:
    kind: Kind = getattr(function, "kind", "scorer")
    if kind not in _KINDS:
        raise ConfigError(f"{place}: {name!r} has kind {kind!r}; it must be one of {', '.join(_KINDS)}")
    try:
        arguments = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ConfigError(f"{place}: the arguments of {name!r} cannot be read; write it as a Python function") from None
    positional = [a for a in arguments if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)]
    if len(positional) != 2 or any(a.kind in (a.VAR_POSITIONAL, a.VAR_KEYWORD) for a in arguments):
        raise ConfigError(
            f"{place}: {name!r} must take (endpoints, request) and then keyword-only parameters, as in "
            f"def {name.rpartition(':')[2]}(endpoints, request, *, weight=1.0)"
        )
    parameters = tuple(_parameter(a) for a in arguments if a.kind is a.KEYWORD_ONLY)
    return PluginType(name, kind, bound(function), tuple(parameters), note="user plugin")


class _Spelled(Parameter):
    """A user's parameter is spelled in the configuration as in Python."""

    __slots__ = ()

    @property
    def keyword(self) -> str:
        return self.name


def _parameter(argument: inspect.Parameter) -> Parameter:
    default = REQUIRED if argument.default is argument.empty else argument.default
    readers: dict[type, Callable[[Node], Any]] = {bool: boolean, int: integer, float: number, str: text}
    return _Spelled(argument.name, readers.get(type(default), plain), default)

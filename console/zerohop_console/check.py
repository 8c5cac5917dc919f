"""`zerohop check`: reads a picker's configuration as the picker would, and prints the pipeline as it will run."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from zerohop_picker.models.catalog import Catalog
from zerohop_picker.models.resources import Resources, load_resources
from zerohop_picker.scheduling.config import PipelineConfig, Plugin
from zerohop_picker.scheduling.loading import KIND, load
from zerohop_picker.scheduling.plugin import Parameter
from zerohop_picker.scheduling.registry import REFUSED, TYPES
from zerohop_picker.scheduling.scorers.attribute import ATTRIBUTES
from zerohop_process.errors import ConfigError, reason
from zerohop_process.strict import REQUIRED, duration, load_yaml_all
from zerohop_process.units import duration_text
from zerohop_snapshot import ENDPOINT_COLUMNS, Flag, Snapshot, SnapshotReader

_COLUMNS = frozenset(column.name for column in ENDPOINT_COLUMNS)
_RAW_OF = {"requests": ("waiting", "running"), "age_s": (), "in_flight": (), "queued_tokens": ()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("file", nargs="?", help="EndpointPickerConfig, or objects for --models-file; none: the default")
    parser.add_argument("--shm-dir", type=Path, help="also warn of signals that no endpoint in this snapshot provides")
    parser.add_argument("--types", action="store_true", help="list every plugin type with its parameters and defaults")
    parser.add_argument("--strict", action="store_true", help="end with exit code 1 when there are warnings")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Check and print; 0 fine, 1 warnings with --strict. Raises: ConfigError for a configuration that does not load."""
    if args.types:
        print(_types_text())
        return 0
    text, source = _read(args.file)
    if _kind(text, source) not in (None, KIND):
        return _run_models(text, source, args)
    config = load(text, source)
    warnings = [*config.warnings, *(_unprovided(config, args.shm_dir) if args.shm_dir else ())]
    if args.json:
        print(json.dumps({**_described(config), "warnings": warnings}, indent=2))
    else:
        print(_config_text(config, warnings))
    return 1 if warnings and args.strict else 0


def _read(file: str | None) -> tuple[str, str]:
    if file is None:
        return "", "default pipeline"
    if file == "-":
        return sys.stdin.read(), "standard input"
    try:
        return Path(file).read_text(encoding="utf-8", errors="surrogateescape"), file
    except OSError as error:
        raise ConfigError(reason(error, file)) from None


def _kind(text: str, source: str) -> str | None:
    for document in load_yaml_all(text, source):
        if isinstance(document.value, dict):
            kind = document.value.get("kind")
            if kind is not None and isinstance(kind.value, str) and kind.value.startswith("Inference"):
                return kind.value
        break
    return None


def _described(config: PipelineConfig) -> dict[str, Any]:
    return {
        "source": config.source,
        "handler": _plugin(config.handler),
        "saturation_detector": _plugin(config.detector),
        "profiles": {
            name: {
                "filters": [_plugin(plugin) for plugin in profile.filters],
                "scorers": [{**_plugin(plugin), "weight": weight} for plugin, weight in profile.scorers],
                "picker": _plugin(profile.picker),
            }
            for name, profile in config.profiles.items()
        },
        "prefix": config.prefix._asdict(),
        "feature_gates": dict(config.gates),
    }


def _plugin(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "type": plugin.type.type,
        "parameters": {name: _plain(value) for name, value in plugin.values.items()},
        "configured": plugin.configured,
    }


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {
            k: _plain(v) for k, v in asdict(value).items() if v != "" and not (isinstance(v, float) and math.isnan(v))
        }
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | dict) or value is None else str(value)


def _config_text(config: PipelineConfig, warnings: list[str]) -> str:
    lines = [f"{config.source}: {len(config.profiles)} scheduling profile(s)"]
    lines.append(_line("handler", config.handler))
    lines.append(_line("saturation", config.detector))
    for name, profile in config.profiles.items():
        lines += ["", f"profile {name}"]
        lines += [_line("  filter", plugin) for plugin in profile.filters]
        lines += [_line("  scorer", plugin, f"weight {weight:g}") for plugin, weight in profile.scorers]
        lines.append(_line("  picker", profile.picker))
    prefix = config.prefix
    blocks = "from the engines, at least 1 kB" if prefix.auto_tune else f"{max(prefix.block_size_tokens, 64)} tokens"
    lines += [
        "",
        f"prompt blocks  {blocks}; at most {prefix.max_blocks} blocks or {prefix.max_tokens} tokens of a prompt",
    ]
    gates = [name for name, on in config.gates.items() if on]
    lines.append(f"feature gates  {', '.join(gates) or 'none'}")
    if warnings:
        lines += ["", f"{len(warnings)} warning(s):", *(f"  {warning}" for warning in warnings)]
    return "\n".join(lines)


def _line(what: str, plugin: Plugin, extra: str = "") -> str:
    parameters = [
        f"{p.name} {_spelled(p, plugin.values)}" for p in plugin.type.parameters if _spelled(p, plugin.values)
    ]
    name = plugin.name if plugin.name == plugin.type.type else f"{plugin.name} ({plugin.type.type})"
    default = "" if plugin.configured else "(filled in)"
    details = ", ".join(part for part in (extra, *parameters, default) if part)
    return f"{what:<10} {name:<34} {details}".rstrip()


def _spelled(parameter: Parameter, values: Mapping[str, Any]) -> str:
    value = values.get(parameter.name)
    return duration_text(value) if parameter.read is duration and value is not None else _shown(value)


def _shown(value: Any) -> str:
    plain = _plain(value)
    if plain is None or plain == "":
        return ""
    if isinstance(plain, bool):
        return str(plain).lower()
    if isinstance(plain, float):
        return f"{plain:g}"
    return json.dumps(plain) if isinstance(plain, dict | list) else str(plain)


# Signals that nobody provides.


def _unprovided(config: PipelineConfig, shm_dir: Path) -> list[str]:
    reader = SnapshotReader(shm_dir, node=False)
    snapshot = reader.read()
    if snapshot is None:
        return [f"{reader.detail} So no signal was checked."]
    flags = snapshot.column("flags")
    rows = [row for row in range(len(flags)) if flags[row] & int(Flag.USED)]
    if not rows:
        return [f"{shm_dir}: the snapshot has no endpoint, so no signal was checked."]
    warnings = []
    for profile in config.profiles.values():
        for plugin in (*profile.filters, *(plugin for plugin, _ in profile.scorers)):
            missing = [name for name in _signals(plugin) if not _provided(snapshot, rows, name)]
            if missing:
                warnings.append(
                    f"{plugin.place}: {plugin.name!r} reads {', '.join(missing)}, which none of the {len(rows)} "
                    "endpoint(s) provides now, so it has no say"
                )
    return list(dict.fromkeys(warnings))


def _signals(plugin: Plugin) -> list[str]:
    names: list[str] = []
    for name in plugin.type.reads:
        if name in ("attribute", "attributeKey"):
            attribute = plugin.values[name]
            names.extend(_RAW_OF.get(attribute, (attribute,)))
        elif name in _COLUMNS:
            names.append(name)
    return names


def _provided(snapshot: Snapshot, rows: list[int], name: str) -> bool:
    column = snapshot.column(name)
    return any(not math.isnan(column[row]) for row in rows)


# Models and objectives.


def _run_models(text: str, source: str, args: argparse.Namespace) -> int:
    resources = load_resources(text, source)
    problems = Catalog([resources], None).problems
    if args.json:
        print(json.dumps({"source": source, "objects": asdict(resources), "warnings": problems}, indent=2))
    else:
        print(_models_text(resources, source, problems))
    return 1 if problems and args.strict else 0


def _models_text(resources: Resources, source: str, problems: list[str]) -> str:
    counts = f"{len(resources.models)} model(s), {len(resources.objectives)} objective(s), {len(resources.rewrites)}"
    lines = [f"{source}: {counts} rewrite(s)"]
    for model in resources.models:
        total = sum(target.weight or 0 for target in model.targets)
        targets = [f"{t.model} {100 * (t.weight or 0) / total:.3g} %" for t in model.targets if total and t.weight]
        what = ", ".join(targets) if targets else ("reserved: answered 404" if model.targets else "as it is")
        lines.append(f"  model      {model.model_name:<34} {model.criticality}; {what}")
    lines += [f"  objective  {o.identity.name:<34} priority {o.priority}" for o in resources.objectives]
    for rewrite in resources.rewrites:
        for rule in rewrite.rules:
            names = ", ".join(target.model for target in rule.targets)
            lines.append(f"  rewrite    {', '.join(rule.models) or 'every model':<34} to {names}")
    if problems:
        lines += ["", f"{len(problems)} warning(s):", *(f"  {problem}" for problem in problems)]
    return "\n".join(lines)


def _default(parameter: Parameter) -> str:
    if parameter.default is REQUIRED:
        return "required"
    return _spelled(parameter, {parameter.name: parameter.default}) or "-"


def _types_text() -> str:
    lines = []
    kinds = ("profile-handler", "decider", "filter", "scorer", "picker", "detector", "producer", "source", "parser")
    for kind in kinds:
        lines.append(f"{kind}s")
        for entry in TYPES.values():
            if entry.kind == kind:
                lines.append(f"  {entry.type}" + (f"  ({entry.note})" if entry.note else ""))
                lines += [f"      {p.name:<26} {_default(p):<24} {p.meaning}".rstrip() for p in entry.parameters]
    lines.append("not supported")
    lines += [f"  {name}: {instead}" for name, instead in sorted(REFUSED.items())]
    lines.append(f"attributes  {', '.join(ATTRIBUTES)}")
    return "\n".join(lines)

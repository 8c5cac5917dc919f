"""The `mappings:` section of the agent's configuration: engines that a user adds, or corrects.

mappings:
  acme:                                  # a new engine
    prefixes: ["acme:"]
    fields:
      waiting: "acme:queue_depth"        # one name: its series are added
      running: ["acme:active", "acme:running"]          # the first one on the page counts
      kv_cache_usage: {metric: "acme:kv_percent", scale: 0.01, combine: mean}
      generation_tokens: {metric: "acme:tokens_total", where: {kind: output}}
      block_size: {metric: "acme:config_info", label: block_size}
      lora_running: {metric: "acme:adapters", names: active}
  vllm:                                  # a built-in one, with one field read otherwise
    fields:
      waiting: {metric: "vllm:num_requests_waiting", plus: ["vllm:num_requests_swapped"]}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from zerohop_agent.modelserver.engines import ENGINES
from zerohop_agent.modelserver.mapping import (
    Combine,
    EngineMapping,
    LabelProduct,
    LabelValue,
    Names,
    Pick,
    Ratio,
    Source,
    Total,
)
from zerohop_agent.modelserver.text import split_sample
from zerohop_agent.signals import SIGNAL_NAMES
from zerohop_process import strict
from zerohop_process.strict import Fields, Node, did_you_mean

__all__ = ["read_mappings"]

_NAME_FIELDS = frozenset({"lora_running", "lora_waiting"})
# These are read from /v1/models, never from a page.
_FIELDS = tuple(name for name in SIGNAL_NAMES if name not in ("models", "adapters"))


def read_mappings(node: Node | None) -> Mapping[str, EngineMapping]:
    """Return the built-in engines with those of `node` added or corrected. A user's new engines are tried first.

    Raises: ConfigError, with file and line, for anything that is not understood.
    """
    if node is None or node.value is None:
        return ENGINES
    own = {name: _read_engine(name, member) for name, member in node.members().items()}
    added = {name: mapping for name, mapping in own.items() if name not in ENGINES}
    return {**added, **{name: own.get(name, mapping) for name, mapping in ENGINES.items()}}


def _read_engine(name: str, node: Node) -> EngineMapping:
    fields = Fields(node)
    base_name = fields.take("extends", strict.one_of(*ENGINES), name if name in ENGINES else None)
    base = ENGINES.get(base_name) if base_name is not None else None
    own = fields.take("fields", _read_fields, {})
    prefixes = fields.take("prefixes", strict.list_of(str), list(base.prefixes) if base else None)
    if not prefixes or not all(prefixes):
        raise node.error("field 'prefixes' is missing: say how the names of this engine's metrics begin")
    merged: dict[str, tuple[Source, ...]] = {**(base.fields if base else {}), **own}
    if not merged:
        raise node.error("field 'fields' is missing: say where at least one signal is found")
    default = base or EngineMapping(name, tuple(prefixes), merged)
    mapping = EngineMapping(
        name=name,
        prefixes=tuple(prefixes),
        fields=merged,
        replica_labels=frozenset(fields.take("replica_labels", strict.list_of(str), default.replica_labels)),
        breakdown_labels=frozenset(fields.take("breakdown_labels", strict.list_of(str), default.breakdown_labels)),
        metrics_path=fields.take("metrics_path", str, default.metrics_path),
        health_path=fields.take("health_path", str, default.health_path),
        narrowable=default.narrowable,
        floor_interval_s=fields.take("floor_interval", strict.duration, int(default.floor_interval_s * 1e9)) / 1e9,
        required=default.required,
        expected=tuple(field for field in default.expected if field in merged),
        source=node.place,
    )
    fields.finish()
    return mapping


def _read_fields(node: Node) -> dict[str, tuple[Source, ...]]:
    read: dict[str, tuple[Source, ...]] = {}
    for name, member in node.members().items():
        if name not in _FIELDS:
            raise member.error(f"no signal is called {name!r}{did_you_mean(name, _FIELDS)}")
        nodes = member.items() if isinstance(member.value, list) else [member]
        if not nodes:
            raise member.error("the list is empty; name at least one metric")
        read[name] = tuple(_read_source(name, each) for each in nodes)
    return read


def _read_source(field: str, node: Node) -> Source:
    if isinstance(node.value, str):
        if field in _NAME_FIELDS:
            raise node.error("this signal is a list of names; write {metric: NAME, names: LABEL}")
        return Total(_read_pick(node))
    fields = Fields(node)
    if fields.has("part"):
        source: Source = Ratio(fields.take("part", _read_pick), fields.take("whole", _read_pick))
        fields.finish()
        return source
    pick = Pick(fields.take("metric", _metric_name), _where(fields))
    if fields.has("names") or field in _NAME_FIELDS:
        source = Names(pick, tuple(fields.take("names", _text_or_list)))
    elif fields.has("labels"):
        first, second = fields.take("labels", _pair)
        source = LabelProduct(pick, (first, second))
    elif fields.has("label"):
        source = LabelValue(pick, fields.take("label", str), _combine(fields, "max"))
    else:
        plus = tuple(fields.take("plus", strict.list_of(_read_pick), []))
        scale = fields.take("scale", strict.within(float, 1e-12, 1e12), 1.0)
        source = Total(pick, _combine(fields, "sum"), plus, scale)
    fields.finish()
    return source


def _read_pick(node: Node) -> Pick:
    if isinstance(node.value, str):
        return Pick(_metric_name(node))
    fields = Fields(node)
    pick = Pick(fields.take("metric", _metric_name), _where(fields))
    fields.finish()
    return pick


def _metric_name(node: Node) -> str:
    name = strict.text(node)
    sample = split_sample(name.encode() + b" 0")
    if sample is None or sample[0].decode() != name:
        raise node.error(f"{name!r} is no name of a metric")
    return name


def _where(fields: Fields) -> tuple[tuple[str, str], ...]:
    where: dict[str, str] = fields.take("where", strict.map_of(str), {})
    return tuple(sorted(where.items()))


def _combine(fields: Fields, default: Combine) -> Combine:
    return cast("Combine", fields.take("combine", strict.one_of("sum", "max", "min", "mean"), default))


def _text_or_list(node: Node) -> list[str]:
    return [strict.text(node)] if isinstance(node.value, str) else [strict.text(item) for item in node.items()]


def _pair(node: Node) -> tuple[str, str]:
    items = _text_or_list(node)
    if len(items) != 2:
        raise node.error("expected the names of two labels")
    return items[0], items[1]

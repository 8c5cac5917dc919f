"""The parts of an ``EndpointPickerConfig`` beside plugins and profiles: most describe what is always done here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from zerohop_picker.scheduling.config import Plugin
from zerohop_picker.scheduling.registry import TYPES
from zerohop_picker.state.prefixes import BYTES_PER_TOKEN, PrefixSettings
from zerohop_process.errors import ConfigError
from zerohop_process.strict import Fields, boolean, did_you_mean, list_of, text

_GATES: Final[Mapping[str, bool]] = {
    "flowControl": False,
    "haPopulateNonLeaderDatastore": True,
    "dataLayer": True,
    "prepareDataPlugins": True,
    "enableLegacyMetrics": False,
    # Ours: the answer to a request with header x-zerohop-debug tells the scores.
    "debugScores": False,
}


def read_gates(fields: Fields) -> Mapping[str, bool]:
    """Return every feature gate. Raises: ConfigError for an unknown one, and for flowControl."""
    gates = dict(_GATES)
    for node in fields.take("featureGates", list_of(lambda n: n), []):
        name, equals, value = text(node).partition("=")
        if name not in gates:
            raise node.error(f"unknown feature gate {name!r}{did_you_mean(name, gates)}")
        if equals and value not in ("true", "false"):
            raise node.error(f"write {name}=true or {name}=false, not {text(node)!r}")
        gates[name] = value != "false"
        if name == "flowControl" and gates[name]:
            raise node.error(
                "flowControl is not supported: requests are shed, not queued; remove the gate, and set "
                "saturationDetector to say when"
            )
    return gates


def read_data_layer(fields: Fields, plugins: Collection[str]) -> None:
    """Read ``dataLayer``: what it describes is the agent's work, so only references are checked."""
    if not fields.has("dataLayer"):
        return
    layer = Fields(fields.take("dataLayer", lambda n: n))
    layer.take("injectDefaults", boolean, True)
    for source in layer.take("sources", list_of(lambda n: n), []):
        inner = Fields(source)
        _known(inner, plugins)
        for extractor in inner.take("extractors", list_of(lambda n: n), []):
            nested = Fields(extractor)
            _known(nested, plugins)
            nested.finish()
        inner.finish()
    for name, instead in (
        ("discovery", "give the endpoints to the agent (--endpoints-file, or its Kubernetes discovery)"),
        ("peerDiscovery", "workers of a node share their state in shared memory"),
        ("crossReplicaSyncerPluginRef", "workers of a node share their state in shared memory"),
        ("crossReplicaSyncInterval", "workers of a node share their state in shared memory"),
    ):
        if layer.has(name):
            raise ConfigError(f"{layer.place(name)}: dataLayer.{name} is not supported; {instead}")
    layer.finish()


def read_request_handler(fields: Fields, plugins: Collection[str]) -> None:
    """Read ``requestHandler`` and the older ``parser``: all parsers are on, so only references are checked."""
    for name in ("parser", "requestHandler"):
        if not fields.has(name):
            continue
        inner = Fields(fields.take(name, lambda n: n))
        if name == "parser":
            _known(inner, plugins)
        else:
            for parser in inner.take("parsers", list_of(lambda n: n), []):
                nested = Fields(parser)
                _known(nested, plugins)
                nested.finish()
        inner.finish()


def _known(fields: Fields, plugins: Collection[str]) -> None:
    name = fields.take("pluginRef", text)
    if name not in plugins and name not in TYPES:
        raise ConfigError(f"{fields.place('pluginRef')}: no plugin is named {name!r}{did_you_mean(name, plugins)}")


def prefix_settings(plugins: Mapping[str, Plugin]) -> PrefixSettings:
    """Return how prompts are cut: by the producer, else by the first prefix scorer."""
    for kind in ("approx-prefix-cache-producer", "prefix-cache-scorer"):
        for plugin in plugins.values():
            if plugin.type.type == kind:
                return _prefix_settings(plugin.values)
    return PrefixSettings()


def _prefix_settings(values: Mapping[str, Any]) -> PrefixSettings:
    tokens, tune = values["blockSizeTokens"], values["autoTune"]
    if values["blockSize"] is not None:
        tokens, tune = values["blockSize"], False
    elif values["hashBlockSize"] is not None:
        tokens, tune = max(1, values["hashBlockSize"] // BYTES_PER_TOKEN), False
    return PrefixSettings(
        tune,
        tokens,
        values["maxPrefixBlocksToMatch"],
        values["maxPrefixTokensToMatch"],
        values["lruCapacityPerServer"],
    )

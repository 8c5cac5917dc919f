"""Reads an ``EndpointPickerConfig`` strictly: every mistake is named by file, line and the nearest right name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from zerohop_picker.scheduling.config import PipelineConfig, Plugin, Profile
from zerohop_picker.scheduling.plugin import PluginType
from zerohop_picker.scheduling.registry import REFUSED, TYPES
from zerohop_picker.scheduling.sections import prefix_settings, read_data_layer, read_gates, read_request_handler
from zerohop_picker.scheduling.user_plugins import is_user_plugin, user_plugin_type
from zerohop_process.errors import ConfigError
from zerohop_process.strict import Fields, Node, did_you_mean, list_of, load_yaml, nearest, number, text, within

API_VERSIONS: Final = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
KIND: Final = "EndpointPickerConfig"

#: Used when no configuration is given at all: stay where the prompt's prefix is cached until that endpoint is busier
#: than the least busy one by more than a few requests; then least waiting + picks since, then KV use, then at random.
STICKY_LEAST_LOADED: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: sticky-prefix-filter
  - type: least-loaded-scorer
  - type: max-score-picker
    parameters:
      maxNumOfEndpoints: 3
  - type: single-profile-handler
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: sticky-prefix-filter
      - pluginRef: least-loaded-scorer
      - pluginRef: max-score-picker
"""
#: What the field runs when a configuration names no plugins.
_FIELD_DEFAULT: Final = (("queue-scorer", 2.0), ("kv-cache-utilization-scorer", 2.0), ("prefix-cache-scorer", 3.0))


def load(text: str | None = None, source: str = "default") -> PipelineConfig:
    """Return the pipeline that ``text`` describes; no or an empty text is the default pipeline. Raises: ConfigError."""
    text = text or ""
    node = load_yaml(text, source)
    if node.value is None:
        text = STICKY_LEAST_LOADED
        node = load_yaml(text, source)
    return _Loader(node, text, source).config()


class _Loader:
    def __init__(self, node: Node, text: str, source: str) -> None:
        self._root = node
        self._text = text
        self._source = source
        self._plugins: dict[str, Plugin] = {}
        self._warnings: list[str] = []
        self._files: set[Path] = set()

    def config(self) -> PipelineConfig:
        fields = Fields(self._root)
        self._header(fields)
        gates = read_gates(fields)
        for node in fields.take("plugins", list_of(lambda n: n), []):
            self._plugin(node)
        profiles = self._profiles(fields.take("schedulingProfiles", list_of(lambda n: n), []))
        detector = self._detector(fields)
        read_data_layer(fields, self._plugins)
        read_request_handler(fields, self._plugins)
        fields.finish()
        handler = self._handler(profiles)
        self._unused(profiles, handler, detector)
        return PipelineConfig(
            self._source, self._text, dict(self._plugins), profiles, handler, detector,
            prefix_settings(self._plugins), gates, tuple(self._warnings), tuple(sorted(self._files)),
        )  # fmt: skip

    def _header(self, fields: Fields) -> None:
        version, kind = fields.take("apiVersion", text), fields.take("kind", text)
        if kind == "ConfigMap":
            raise ConfigError(f"{fields.place('kind')}: 'ConfigMap' is around it; give the {KIND!r} inside its data")
        if version not in API_VERSIONS:
            raise ConfigError(f"{fields.place('apiVersion')}: {version!r} is not supported; write {API_VERSIONS[0]!r}")
        if version != API_VERSIONS[0]:
            self._warn(fields.place("apiVersion"), f"{version} is deprecated; write {API_VERSIONS[0]}")
        if kind != KIND:
            raise ConfigError(f"{fields.place('kind')}: {kind!r} is not a configuration of a picker; expected {KIND!r}")

    def _plugin(self, node: Node) -> None:
        fields = Fields(node)
        type_name = fields.take("type", text)
        name = fields.take("name", text, type_name)
        parameters = fields.take("parameters", lambda n: n, None)
        fields.finish()
        if name in self._plugins:
            raise ConfigError(
                f"{node.place}: a plugin named {name!r} exists already ({self._plugins[name].place}); "
                "give one of them another name"
            )
        plugin_type = self._type(type_name, fields.place("type"))
        values = plugin_type.values(
            parameters if parameters is not None else Node({}, node.source, node.line, node.path)
        )
        if plugin_type.note.startswith("deprecated"):
            self._warn(fields.place("type"), f"{type_name} is {plugin_type.note}")
        self._plugins[name] = Plugin(name, plugin_type, values, plugin_type.build(values), node.place)

    def _type(self, name: str, place: str) -> PluginType:
        known = TYPES.get(name)
        if known is not None:
            return known
        if name in REFUSED:
            raise ConfigError(f"{place}: plugin type {name!r} is not supported; {REFUSED[name]}")
        if is_user_plugin(name):
            found, path = user_plugin_type(name, place, self._source)
            if path is not None:
                self._files.add(path)
            return found
        guess = nearest(name, (*TYPES, *REFUSED))
        hint = f"; did you mean {guess!r}?" if guess else "; `zerohop check --types` lists all"
        raise ConfigError(f"{place}: unknown plugin type {name!r}{hint}")

    def _added(self, type_name: str, place: str) -> Plugin:
        """Return a plugin of a type that the configuration relies on without naming it."""
        for plugin in self._plugins.values():
            if plugin.type.type == type_name:
                return plugin
        plugin_type = TYPES[type_name]
        values = plugin_type.values(None)
        plugin = Plugin(type_name, plugin_type, values, plugin_type.build(values), place, configured=False)
        self._plugins[type_name] = plugin
        return plugin

    def _profiles(self, nodes: list[Node]) -> dict[str, Profile]:
        profiles: dict[str, Profile] = {}
        for node in nodes:
            fields = Fields(node)
            name = fields.take("name", text)
            if name in profiles:
                raise ConfigError(f"{fields.place('name')}: a scheduling profile named {name!r} exists already")
            references = [self._reference(entry) for entry in fields.take("plugins", list_of(lambda n: n), [])]
            fields.finish()
            profiles[name] = self._profile(name, references, node.place)
        if not profiles:
            profiles["default"] = self._default_profile()
        return profiles

    def _default_profile(self) -> Profile:
        place = f"{self._source}: default profile"
        parts = [p for p in self._plugins.values() if p.kind in ("filter", "scorer", "picker")]
        if not any(p.kind == "scorer" for p in parts):
            parts += [self._added(type_name, place) for type_name, _ in _FIELD_DEFAULT]
        weights = dict(_FIELD_DEFAULT) if not any(p.configured for p in parts if p.kind == "scorer") else {}
        return self._profile("default", [(p, weights.get(p.name), place) for p in parts], place)

    def _reference(self, node: Node) -> tuple[Plugin, float | None, str]:
        fields = Fields(node)
        name = fields.take("pluginRef", text)
        weight = fields.take("weight", within(number, 0.0, 1e9), None)
        fields.finish()
        plugin = self._plugins.get(name)
        if plugin is None:
            hint = did_you_mean(name, self._plugins) if self._plugins else "; add it to plugins"
            raise ConfigError(f"{fields.place('pluginRef')}: no plugin is named {name!r}{hint}")
        if weight is not None and plugin.kind != "scorer":
            self._warn(fields.place("weight"), f"weight of {name!r} cannot matter: it is a {plugin.kind}, not a scorer")
        if weight == 0.0:
            self._warn(fields.place("weight"), f"weight 0 of {name!r} cannot matter; remove the reference")
        return plugin, weight, node.place

    def _profile(self, name: str, references: list[tuple[Plugin, float | None, str]], place: str) -> Profile:
        filters: list[Plugin] = []
        scorers: list[tuple[Plugin, float]] = []
        picker: Plugin | None = None
        for plugin, weight, where in references:
            if plugin.kind in ("filter", "detector"):
                filters.append(plugin)
            elif plugin.kind == "scorer":
                if any(plugin is other for other, _ in scorers):
                    raise ConfigError(f"{where}: {plugin.name!r} is referenced twice in profile {name!r}")
                scorers.append((plugin, 1.0 if weight is None else weight))
                keep = getattr(plugin.instance, "keep", None)
                if keep is not None and plugin.instance.filtering:
                    filter_type = PluginType(plugin.type.type, "filter", lambda: None)
                    filters.append(Plugin(plugin.name, filter_type, {}, keep, where, configured=False))
            elif plugin.kind == "picker":
                if picker is not None:
                    raise ConfigError(
                        f"{where}: profile {name!r} has two pickers, {picker.name!r} and {plugin.name!r}; keep one"
                    )
                picker = plugin
            elif plugin.kind not in ("producer", "source", "parser"):
                raise ConfigError(
                    f"{where}: {plugin.name!r} is a {plugin.kind}; a profile takes filters, scorers and one picker"
                )
        if picker is None:
            picker = self._added("max-score-picker", place)
        if picker.type.type == "random-picker" and scorers:
            names = ", ".join(plugin.name for plugin, _ in scorers)
            self._warn(place, f"weights in profile {name!r} cannot matter ({names}): random-picker ignores scores")
        elif len(scorers) == 1 and scorers[0][1] not in (0.0, 1.0):
            self._warn(
                place, f"the weight of {scorers[0][0].name!r} in profile {name!r} cannot matter: no other scorer"
            )
        sticky = [p.name for p in filters if p.type.type in ("prefix-cache-affinity-filter", "sticky-prefix-filter")]
        cached = [p.name for p, weight in scorers if p.type.type == "prefix-cache-scorer" and weight > 0]
        if sticky and cached:
            self._warn(
                place,
                f"{cached[0]!r} keeps requests on the endpoint that {sticky[0]!r} would release; remove one of them",
            )
        return Profile(name, tuple(filters), tuple(scorers), picker, place)

    def _handler(self, profiles: Mapping[str, Profile]) -> Plugin:
        handlers = [plugin for plugin in self._plugins.values() if plugin.kind == "profile-handler"]
        if len(handlers) > 1:
            raise ConfigError(
                f"{handlers[1].place}: two profile handlers, {handlers[0].name!r} and {handlers[1].name!r}; keep one"
            )
        handler = handlers[0] if handlers else self._added("single-profile-handler", f"{self._source}: default")
        deciders = {name: plugin.instance for name, plugin in self._plugins.items() if plugin.kind == "decider"}
        wrong = handler.instance.link(tuple(profiles), deciders)
        if wrong:
            hint = "" if handler.configured else "; add a profile handler, such as disagg-profile-handler"
            raise ConfigError(f"{handler.place if handler.configured else self._source}: {wrong}{hint}")
        return handler

    def _detector(self, fields: Fields) -> Plugin:
        """Read the saturation detector: ``pluginRef``, or the older inline thresholds, or inside ``flowControl``."""
        chosen: Plugin | None = None
        if fields.has("flowControl"):
            flow = Fields(fields.take("flowControl", lambda n: n))
            if flow.has("saturationDetector"):
                chosen = self._detector_reference(flow.take("saturationDetector", lambda n: n))
            for name, member in flow.node.members().items():
                if name != "saturationDetector":
                    raise member.error(
                        f"flowControl.{name} is not supported: requests are shed, not queued; "
                        "keep flowControl.saturationDetector and remove the rest"
                    )
        if fields.has("saturationDetector"):
            chosen = self._detector_reference(fields.take("saturationDetector", lambda n: n))
        return chosen or self._added("utilization-detector", f"{self._source}: default")

    def _detector_reference(self, node: Node) -> Plugin:
        fields = Fields(node)
        if not fields.has("pluginRef"):
            known = TYPES["utilization-detector"]
            values = known.values(node)
            plugin = Plugin("saturationDetector", known, values, known.build(values), node.place)
            self._plugins.setdefault(plugin.name, plugin)
            return plugin
        name = fields.take("pluginRef", text)
        fields.finish()
        found = self._plugins.get(name)
        if found is None or found.kind != "detector":
            what = "no plugin is" if found is None else f"a {found.kind}, not a saturation detector, is"
            raise ConfigError(
                f"{fields.place('pluginRef')}: {what} named {name!r}; add a utilization-detector to plugins"
            )
        return found

    def _unused(self, profiles: Mapping[str, Profile], handler: Plugin, detector: Plugin) -> None:
        used = {handler.name, detector.name}
        for profile in profiles.values():
            used.update(p.name for p in profile.filters)
            used.update(p.name for p, _ in profile.scorers)
            used.add(profile.picker.name)
        for plugin in self._plugins.values():
            if plugin.configured and plugin.kind in ("filter", "scorer", "picker") and plugin.name not in used:
                self._warn(
                    plugin.place, f"{plugin.kind} {plugin.name!r} is in no scheduling profile, so it does nothing"
                )

    def _warn(self, place: str, message: str) -> None:
        self._warnings.append(f"{place}: {message}")

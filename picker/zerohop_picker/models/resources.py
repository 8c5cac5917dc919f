"""InferenceModel, InferenceObjective and InferenceModelRewrite as we understand them, read from files or the snapshot.

A file holds Kubernetes objects, one document each, and is read strictly. The snapshot holds what the agent found in
the cluster (each object's ``spec`` with ``name``, ``namespace``, ``created`` and ``uid`` beside it); an object there
that makes no sense is left out and reported: the API server has accepted it already, and the others must go on working.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from zerohop_process.errors import ConfigError
from zerohop_process.strict import Fields, Node, did_you_mean, integer, list_of, load_yaml_all, one_of, text, within

MAX_WEIGHT: Final = 1_000_000
MAX_TARGETS: Final = 10
#: Priority that stands for each criticality of the older API.
CRITICALITY: Final[Mapping[str, int]] = {"Critical": 1, "Default": 0, "Standard": 0, "Sheddable": -1}
_VERSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "InferenceModel": ("inference.networking.x-k8s.io/v1alpha1", "inference.networking.x-k8s.io/v1alpha2"),
    "InferenceObjective": ("llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2"),
    "InferenceModelRewrite": ("llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2"),
}


@dataclass(frozen=True, slots=True)
class Identity:
    """Which object, and how old: the older one wins where two claim the same."""

    namespace: str
    name: str
    pool: str
    created: float = 0.0

    @property
    def age_order(self) -> tuple[float, str, str]:
        """Sorts the oldest first, then by name, so that the order of discovery never matters."""
        return self.created, self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Target:
    """One target model; ``weight`` None = not given."""

    model: str
    weight: int | None = None


@dataclass(frozen=True, slots=True)
class InferenceModel:
    """A model name that clients use, how critical it is, and the models it stands for (none = itself)."""

    identity: Identity
    model_name: str
    criticality: str = "Standard"
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True)
class InferenceObjective:
    """A priority that requests ask for by name; below 0 they may be shed."""

    identity: Identity
    priority: int = 0


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """Models that a rule matches (none = every model) and what they become."""

    models: tuple[str, ...]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class InferenceModelRewrite:
    """Rules of one object, in order."""

    identity: Identity
    rules: tuple[RewriteRule, ...]


@dataclass(frozen=True, slots=True)
class Resources:
    """Everything that was read, and what was left out of it."""

    models: tuple[InferenceModel, ...] = ()
    objectives: tuple[InferenceObjective, ...] = ()
    rewrites: tuple[InferenceModelRewrite, ...] = ()
    problems: tuple[str, ...] = ()


def load_resources(content: str, source: str) -> Resources:
    """Return the objects of a YAML file. Raises: ConfigError for the first thing that is wrong."""
    found: dict[str, list[Any]] = {kind: [] for kind in _VERSIONS}
    for node in load_yaml_all(content, source):
        fields = Fields(node)
        kind = fields.take("kind", text)
        if kind not in _VERSIONS:
            raise ConfigError(f"{fields.place('kind')}: unknown kind {kind!r}{did_you_mean(kind, _VERSIONS)}")
        fields.take("apiVersion", one_of(*_VERSIONS[kind]))
        metadata = fields.take("metadata", lambda n: n)
        spec = Fields(fields.take("spec", lambda n: n))
        fields.take("status", lambda n: n, None)
        fields.finish()
        found[kind].append(_READERS[kind](spec, _metadata(metadata)))
        spec.finish()
    return _resources(found, [])


def pool_resources(pool: Mapping[str, Any]) -> Resources:
    """Return the objects that the snapshot's cold map gives for one pool; ``problems`` says what was left out."""
    problems: list[str] = []
    found: dict[str, list[Any]] = {kind: [] for kind in _VERSIONS}
    for key, kind in (
        ("models", "InferenceModel"), ("objectives", "InferenceObjective"), ("rewrites", "InferenceModelRewrite"),
    ):  # fmt: skip
        for entry in pool.get(key) or ():
            if not isinstance(entry, Mapping):
                continue
            identity = Identity(
                str(entry.get("namespace") or "default"), str(entry.get("name") or ""), str(pool.get("name") or ""),
                float(entry.get("created") or 0.0),
            )  # fmt: skip
            spec = {name: value for name, value in entry.items() if name not in ("namespace", "name", "created", "uid")}
            try:
                found[kind].append(_READERS[kind](Fields(_node(spec, f"{kind} {identity}")), identity))
            except ConfigError as error:
                problems.append(f"left out: {error}")
    return _resources(found, problems)


def _resources(found: Mapping[str, list[Any]], problems: list[str]) -> Resources:
    models, objectives, rewrites = (tuple(found[kind]) for kind in _VERSIONS)
    return Resources(models, objectives, rewrites, tuple(problems))


def _node(value: Any, source: str, path: str = "") -> Node:
    if isinstance(value, Mapping):
        members = {str(k): _node(v, source, f"{path}.{k}" if path else str(k)) for k, v in value.items()}
        return Node(members, source, 1, path)
    if isinstance(value, list | tuple):
        return Node([_node(v, source, f"{path}[{i}]") for i, v in enumerate(value)], source, 1, path)
    return Node(value, source, 1, path)


def _metadata(node: Node) -> Identity:
    # No `finish`: labels, annotations and what an API server adds are nobody's mistake here.
    fields = Fields(node)
    name = fields.take("name", text)
    namespace = fields.take("namespace", text, "default")
    created = fields.take("creationTimestamp", _timestamp, 0.0)
    return Identity(namespace, name, "", created)


def _timestamp(node: Node) -> float:
    value = text(node)
    try:
        return float(calendar.timegm(time.strptime(value, "%Y-%m-%dT%H:%M:%SZ")))
    except ValueError:
        raise node.error(f"{value!r} is not a time like 2026-01-31T12:00:00Z") from None


def _pool(fields: Fields, identity: Identity) -> Identity:
    """Read ``poolRef``; an object from the snapshot has its pool already."""
    if identity.pool:
        fields.take("poolRef", lambda n: n, None)
        return identity
    reference = Fields(fields.take("poolRef", lambda n: n))
    reference.take("group", text, "")
    reference.take("kind", one_of("InferencePool"), "InferencePool")
    name = reference.take("name", text)
    reference.finish()
    return Identity(identity.namespace, identity.name, f"{identity.namespace}/{name}", identity.created)


def _model(fields: Fields, identity: Identity) -> InferenceModel:
    identity = _pool(fields, identity)
    name = fields.take("modelName", _name)
    criticality = fields.take("criticality", one_of(*CRITICALITY), "Standard")
    targets = tuple(fields.take("targetModels", list_of(_model_target), ()))
    if len(targets) > MAX_TARGETS:
        raise ConfigError(
            f"{fields.place('targetModels')}: {len(targets)} target models, at most {MAX_TARGETS} are allowed"
        )
    return InferenceModel(identity, name, criticality, targets)


def _model_target(node: Node) -> Target:
    fields = Fields(node)
    target = Target(fields.take("name", _name), fields.take("weight", within(integer, 0, MAX_WEIGHT), 1))
    fields.finish()
    return target


def _objective(fields: Fields, identity: Identity) -> InferenceObjective:
    identity = _pool(fields, identity)
    return InferenceObjective(identity, fields.take("priority", within(integer, -(2**31), 2**31 - 1), 0))


def _rewrite(fields: Fields, identity: Identity) -> InferenceModelRewrite:
    identity = _pool(fields, identity)
    return InferenceModelRewrite(identity, tuple(fields.take("rules", list_of(_rule))))


def _rule(node: Node) -> RewriteRule:
    fields = Fields(node)
    models = tuple(fields.take("matches", list_of(_match), ()))
    targets = tuple(fields.take("targets", list_of(_rewrite_target)))
    fields.finish()
    if not targets:
        raise ConfigError(f"{fields.place('targets')}: a rule needs at least one target")
    return RewriteRule(models, targets)


def _match(node: Node) -> str:
    fields = Fields(node)
    model = Fields(fields.take("model", lambda n: n))
    fields.finish()
    model.take("type", one_of("Exact"), "Exact")
    value = model.take("value", _name)
    model.finish()
    return value


def _rewrite_target(node: Node) -> Target:
    fields = Fields(node)
    target = Target(fields.take("modelRewrite", _name), fields.take("weight", within(integer, 1, MAX_WEIGHT), None))
    fields.finish()
    return target


def _name(node: Node) -> str:
    value = text(node)
    if not 1 <= len(value) <= 256:
        raise node.error("a model's name has 1 to 256 characters")
    return value


_READERS: Final = {"InferenceModel": _model, "InferenceObjective": _objective, "InferenceModelRewrite": _rewrite}

"""What a request's model name and objective mean in one pool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

from zerohop_picker.models.draw import WeightedDraw
from zerohop_picker.models.resources import CRITICALITY, Identity, InferenceModel, Resources, RewriteRule, Target

#: Draws keep their place over a reload of the same weights; more names than this are not remembered.
_DRAWS_KEPT: Final = 10_000


class Resolution(NamedTuple):
    """The model to ask for (None = the body's own) and the request's priority."""

    model: str | None
    priority: int
    #: The name is registered but reserved: all its targets have weight 0.
    reserved: bool = False


_UNCHANGED: Final = Resolution(None, 0)


class Catalog:
    """The models, objectives and rewrites of one pool, compiled for lookup; ``problems`` names what is ignored."""

    def __init__(self, parts: Iterable[Resources], pool: str | None, start: int = 0) -> None:
        """Take what belongs to ``pool`` (``namespace/name``; None = everything). ``start`` staggers the draws."""
        self.problems: list[str] = []
        self._models: dict[str, InferenceModel] = {}
        self._objectives: dict[str, int] = {}
        self._rules: dict[str | None, RewriteRule] = {}
        self._draws: dict[tuple[str, tuple[Target, ...]], WeightedDraw[str]] = {}
        self._start = start
        parts = list(parts)
        for resources in parts:
            self.problems.extend(resources.problems)
        for model in _oldest_first(m for r in parts for m in r.models if _belongs(m.identity.pool, pool)):
            first = self._models.setdefault(model.model_name, model)
            if first is not model:
                self.problems.append(
                    f"InferenceModel {model.identity}: model name {model.model_name!r} is in use by the older "
                    f"{first.identity}; this one is ignored"
                )
        for objective in _oldest_first(o for r in parts for o in r.objectives if _belongs(o.identity.pool, pool)):
            if self._objectives.setdefault(objective.identity.name, objective.priority) != objective.priority:
                self.problems.append(f"InferenceObjective {objective.identity}: an older one has this name; ignored")
        for rewrite in _oldest_first(w for r in parts for w in r.rewrites if _belongs(w.identity.pool, pool)):
            for rule in rewrite.rules:
                for name in rule.models or (None,):
                    self._rules.setdefault(name, rule)
        #: Whether nothing here can change a request.
        self.empty = not (self._models or self._objectives or self._rules)

    def resolve(self, model: str | None, header: str | None, objective: str | None) -> Resolution:
        """Return what a request for ``model`` becomes.

        Precedence: a rewrite that names the model exactly, a rewrite without matches, the ``header``, the targets of an
        InferenceModel, the name itself. An unknown objective counts as none; then the model's criticality stands.
        """
        if self.empty and not header:
            return _UNCHANGED
        known = self._models.get(model) if model is not None else None
        priority = self._objectives.get(objective) if objective is not None else None
        if priority is None:
            priority = CRITICALITY[known.criticality] if known is not None else 0
        if known is not None and known.targets and not any(target.weight for target in known.targets):
            return Resolution(None, priority, reserved=True)
        if model is not None:
            rule = self._rules.get(model) or self._rules.get(None)
            if rule is not None:
                return Resolution(self._draw("rewrite", rule.targets), priority)
        if header:
            return Resolution(header, priority)
        if known is not None and known.targets:
            return Resolution(self._draw("model", known.targets), priority)
        return Resolution(None, priority)

    def _draw(self, kind: str, targets: tuple[Target, ...]) -> str:
        key = (kind, targets)
        draw = self._draws.get(key)
        if draw is None:
            names = [target.model for target in targets]
            given = [target.weight for target in targets]
            # No weights at all: all alike. Some: those without are never drawn.
            weights = [1] * len(names) if all(w is None for w in given) else [w or 0 for w in given]
            if len(self._draws) >= _DRAWS_KEPT:
                self._draws.clear()
            draw = self._draws[key] = WeightedDraw(names, weights, self._start)
        return draw.draw()

    def inherit(self, older: Catalog) -> None:
        """Go on with the draws of ``older`` where the targets are the same, so that a reload does not skew them."""
        self._draws.update(older._draws)


def _belongs(pool_of_object: str, pool: str | None) -> bool:
    return pool is None or pool_of_object == pool or pool_of_object.rpartition("/")[2] == pool


class _Aged(Protocol):
    @property
    def identity(self) -> Identity: ...


A = TypeVar("A", bound=_Aged)


def _oldest_first(objects: Iterable[A]) -> list[A]:
    return sorted(objects, key=lambda o: o.identity.age_order)

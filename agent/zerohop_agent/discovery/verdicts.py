"""What is said about each InferenceModel in its status: accepted, or why not. Pure.

Rules of the original API: a model name is used once per pool, and the oldest object keeps it; a model refers to a pool
that exists; at least one target must be reachable by weight, else the name is reserved and requests for it are refused
("no valid target model"). The condition is `Accepted`, with the reasons `Accepted` and `ModelNameInUse` of the API,
and our own `NoValidTarget`, `PoolNotFound` and `Invalid`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from zerohop_agent.discovery.customs import Custom
from zerohop_agent.discovery.resources import Role

ConditionStatus = Literal["True", "False"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The condition `Accepted` of one object."""

    status: ConditionStatus
    reason: str
    message: str


ACCEPTED = Verdict("True", "Accepted", "The model is served.")


def duplicates_of(customs: Iterable[Custom]) -> dict[str, Custom]:
    """uid of each model whose name is taken -> the older object that has it.

    Oldest by creation timestamp; of two of the same second the first by name.
    """
    models = sorted(
        (custom for custom in customs if custom.resource.role is Role.MODELS and custom.invalid is None),
        key=lambda model: (model.created, model.namespace, model.name),
    )
    owners: dict[tuple[str, str], Custom] = {}
    duplicates: dict[str, Custom] = {}
    for model in models:
        owner = owners.setdefault((model.pool, model.spec["modelName"]), model)
        if owner is not model:
            duplicates[model.uid] = owner
    return duplicates


def verdict_on(model: Custom, pool_names: Iterable[str], duplicates: Mapping[str, Custom]) -> Verdict:
    """What is to be said about `model`, given every pool of its namespace."""
    if model.invalid is not None:
        return Verdict("False", "Invalid", model.invalid)
    if (owner := duplicates.get(model.uid)) is not None:
        name = model.spec["modelName"]
        return Verdict("False", "ModelNameInUse", f"The model name {name!r} is used by the older {owner.full_name}.")
    if model.pool not in pool_names:
        return Verdict("False", "PoolNotFound", f"There is no InferencePool {model.pool}.")
    targets = model.spec["targetModels"]
    if targets and all(target.get("weight") == 0 for target in targets):
        return Verdict("False", "NoValidTarget", "Every target model has weight 0: the name is reserved, not served.")
    return ACCEPTED


def conditions_with(
    conditions: Iterable[Mapping[str, Any]], verdict: Verdict, generation: int, now: str
) -> list[dict[str, Any]] | None:
    """The conditions with `verdict` among them; None when they say so already.

    Conditions of other writers stay as they are, and so does the placeholder `Ready` of the CRD's default;
    lastTransitionTime moves only when the status does.
    """
    result = [dict(condition) for condition in conditions]
    for condition in result:
        if condition.get("type") != "Accepted":
            continue
        same = (condition.get("status"), condition.get("reason"), condition.get("message")) == (
            verdict.status,
            verdict.reason,
            verdict.message,
        )
        if same and condition.get("observedGeneration") == generation:
            return None
        if condition.get("status") != verdict.status:
            condition["lastTransitionTime"] = now
        condition |= {
            "status": verdict.status,
            "reason": verdict.reason,
            "message": verdict.message,
            "observedGeneration": generation,
        }
        return result
    result.append(
        {
            "type": "Accepted",
            "status": verdict.status,
            "reason": verdict.reason,
            "message": verdict.message,
            "observedGeneration": generation,
            "lastTransitionTime": now,
        }
    )
    return result

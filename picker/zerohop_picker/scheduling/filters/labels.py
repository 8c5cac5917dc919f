"""Filters by label: standard selectors, and the roles of disaggregated serving. They say where a request *can* go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from zerohop_picker.scheduling.plugin import Parameter, PluginType, bound
from zerohop_picker.scheduling.request import Request
from zerohop_picker.state.endpoints import Endpoints, Objects, absent
from zerohop_picker.state.view import Mask
from zerohop_process.strict import Fields, Node, boolean, list_of, map_of, one_of, text

ENCODE: Final = ("encode", "encode-prefill", "encode-prefill-decode")
PREFILL: Final = ("prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode")
DECODE: Final = ("decode", "prefill-decode", "both", "encode-prefill-decode")


@dataclass(frozen=True, slots=True)
class Expression:
    """One entry of ``matchExpressions``."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, values: Objects) -> Mask:
        """Return where the expression holds, for the label's values (None = absent)."""
        present = ~absent(values)
        if self.operator == "Exists":
            return present
        if self.operator == "DoesNotExist":
            return ~present
        inside = np.array([value in self.values for value in values], dtype=np.bool_)
        return inside if self.operator == "In" else ~inside


def read_expression(node: Node) -> Expression:
    """Read one ``matchExpressions`` entry. Raises: ConfigError."""
    fields = Fields(node)
    key = fields.take("key", text)
    operator = fields.take("operator", one_of("In", "NotIn", "Exists", "DoesNotExist"))
    values = tuple(fields.take("values", list_of(text), ()))
    fields.finish()
    if (operator in ("In", "NotIn")) != bool(values):
        needs = "needs at least one value" if not values else "takes no values"
        raise node.error(f"operator {operator} {needs}")
    return Expression(key, operator, values)


def label_selector(
    endpoints: Endpoints,
    _request: Request,
    *,
    match_labels: dict[str, str] | None,
    match_expressions: list[Expression] | None,
) -> Mask:
    """Keep endpoints whose labels match every pair and every expression; no condition keeps all.

    A missing label matches ``DoesNotExist`` and ``NotIn``, as in Kubernetes.
    """
    mask = np.ones(len(endpoints), dtype=np.bool_)
    for key, value in (match_labels or {}).items():
        mask &= np.equal(endpoints.label(key), value).astype(np.bool_)
    for expression in match_expressions or ():
        mask &= expression.holds(endpoints.label(expression.key))
    return mask


def by_label(
    endpoints: Endpoints, _request: Request, *, label: str, valid_values: list[str] | None, allows_no_label: bool
) -> Mask:
    """Keep endpoints whose label has one of ``validValues``, and those without it if ``allowsNoLabel``."""
    allowed = valid_values or ()
    return np.array(
        [allows_no_label if value is None else value in allowed for value in endpoints.label(label)], dtype=np.bool_
    )


def by_role(endpoints: Endpoints, _request: Request, *, roles: tuple[str, ...], unlabeled: bool) -> Mask:
    """Keep endpoints whose role (label llm-d.ai/role, or the agent's setting) is one of ``roles``."""
    return np.array([unlabeled if role is None else role in roles for role in endpoints.roles()], dtype=np.bool_)


def _role(type_name: str, roles: tuple[str, ...], *, unlabeled: bool) -> PluginType:
    def make() -> object:
        return partial(by_role, roles=roles, unlabeled=unlabeled)

    return PluginType(type_name, "filter", make, reads=("labels",), structural=True)


_SELECTOR = (
    Parameter("matchLabels", map_of(text), None, "label: value pairs that must all match"),
    Parameter("matchExpressions", list_of(read_expression), None, "key, operator, values"),
)

TYPES: tuple[PluginType, ...] = (
    PluginType(
        "label-selector-filter", "filter", bound(label_selector), parameters=_SELECTOR, reads=("labels",),
        structural=True,
    ),
    PluginType(
        "by-label-selector", "filter", bound(label_selector), parameters=_SELECTOR, reads=("labels",), structural=True,
        note="deprecated: use label-selector-filter",
    ),
    PluginType(
        "by-label", "filter", bound(by_label), reads=("labels",), structural=True,
        note="deprecated: use label-selector-filter",
        parameters=(
            Parameter("label", text, meaning="label's name"),
            Parameter("validValues", list_of(text), None, "values that pass"),
            Parameter("allowsNoLabel", boolean, False, "whether endpoints without the label pass"),
        ),
    ),
    _role("encode-filter", ENCODE, unlabeled=False),
    _role("prefill-filter", PREFILL, unlabeled=False),
    _role("decode-filter", DECODE, unlabeled=True),
)  # fmt: skip

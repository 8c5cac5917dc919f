"""What a plugin type is: a name, a kind, parameters, the signals it reads, and the function that does the work."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from zerohop_process.strict import REQUIRED, Fields, Node

Kind = Literal["filter", "scorer", "picker", "profile-handler", "decider", "producer", "detector", "parser", "source"]

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as the configuration spells it; ``read`` turns its Node into a value or raises ConfigError."""

    name: str
    read: Callable[[Node], Any]
    default: Any = REQUIRED
    meaning: str = ""

    @property
    def keyword(self) -> str:
        """The name in Python: ``maxTTFTPenaltyMs`` is ``max_ttft_penalty_ms``."""
        return _CAMEL.sub("_", self.name).lower()


@dataclass(frozen=True, slots=True)
class PluginType:
    """A type that a configuration can name.

    ``make`` gets the parameters as keywords and returns the plugin: a function, or an object that is called like one
    and may have ``picked(request, endpoints, row)``, called when a request goes to ``row``. ``reads`` names the
    snapshot columns (or "prefix", "sessions", "labels") without which it has no opinion.
    """

    type: str
    kind: Kind
    make: Callable[..., Any]
    parameters: tuple[Parameter, ...] = ()
    reads: tuple[str, ...] = ()
    #: A filter that says where a request *can* be served; nothing it drops is tried as a fallback, and when it leaves
    #: nothing the answer is 503. Any other filter says where a request *should* go; when those leave nothing it is 429.
    structural: bool = False
    note: str = ""
    #: A filter that the fallback applies, too, as it does structural ones: it takes microseconds, and what it keeps
    #: (an adapter in place) is dear to lose.
    lasting: bool = False
    #: Where the parameters that the field has for this type are set instead.
    elsewhere: str = ""

    def values(self, node: Node | None) -> dict[str, Any]:
        """Return every parameter's value by its configured name, defaults filled in. Raises: ConfigError."""
        if node is None:
            node = Node({}, "", 0)
        fields = Fields(node)
        if self.elsewhere:
            known = [parameter.name for parameter in self.parameters]
            for name, member in node.members().items():
                if name not in known:
                    raise member.error(f"{self.type} takes no parameter {name!r} here; {self.elsewhere}")
        values = {}
        for parameter in self.parameters:
            if parameter.default is REQUIRED:
                values[parameter.name] = fields.take(parameter.name, parameter.read)
            else:
                values[parameter.name] = fields.take(parameter.name, parameter.read, parameter.default)
        fields.finish()
        return values

    def build(self, values: Mapping[str, Any]) -> Any:
        """Return the plugin for the given parameter values."""
        return self.make(**{parameter.keyword: values[parameter.name] for parameter in self.parameters})


def bound(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``make`` that binds the parameters to ``function`` as keywords."""

    def make(**parameters: Any) -> Any:
        return partial(function, **parameters) if parameters else function

    return make

"""How well discovery knows the cluster, for the agent's own metrics page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from zerohop_agent.discovery.session import Discovery

_PREFIX = "zerohop_agent_discovery"
_LABEL = ("source",)
#: Field of a reflector's counters, name of the metric, help text.
_COUNTERS = (
    ("lists", "lists", "Plain lists asked for"),
    ("watches", "watches", "Watches opened, streaming lists among them"),
    ("events", "events", "Events received"),
    ("failures", "failures", "Requests that failed, and watches that broke"),
    ("expired", "expired_versions", "Resource versions that were too old"),
)


class DiscoveryMetrics(Collector):
    """Reads plain attributes of a running discovery; called from the exporter's thread."""

    def __init__(self, session: Discovery) -> None:
        self._session = session

    def collect(self) -> Iterator[Metric]:
        """All families of discovery."""
        states = self._session.sources.states()
        age = GaugeMetricFamily(
            f"{_PREFIX}_age_seconds", "Time since a source was last known to be right", labels=_LABEL
        )
        objects = GaugeMetricFamily(f"{_PREFIX}_objects", "Objects that a source holds", labels=_LABEL)
        up = GaugeMetricFamily(f"{_PREFIX}_up", "1 while nothing is wrong with a source", labels=_LABEL)
        for name, state in states.items():
            if state.age_s is not None:
                age.add_metric((name,), state.age_s)
            objects.add_metric((name,), state.objects)
            up.add_metric((name,), int(state.trouble is None and state.age_s is not None))
        yield from (age, objects, up)
        for field, metric, text in _COUNTERS:
            family = CounterMetricFamily(f"{_PREFIX}_{metric}", text, labels=_LABEL)
            for name, counters in self._session.sources.counters().items():
                family.add_metric((name,), getattr(counters, field))
            yield family
        yield CounterMetricFamily(
            f"{_PREFIX}_sets", "Times that a new set of endpoints was applied", value=self._session.applied
        )

"""What is known about a model server after it has been looked at: everything that the items judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zerohop_agent.modelserver.mapping import EngineMapping
from zerohop_agent.modelserver.served import ServedModels
from zerohop_agent.signals import Signals, SourceError

__all__ = ["Facts", "LoadFacts", "Sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of the page: seconds since the phase began, seconds it took, and what it said."""

    at_s: float
    took_s: float
    signals: Signals


@dataclass(slots=True)
class LoadFacts:
    """What happened while requests were served."""

    #: requests sent at once, of which `adapters` had an adapter each
    concurrency: int = 0
    adapters: Sequence[str] = ()
    answered: int = 0
    #: a sentence for each request that failed, the first ones
    failures: list[str] = field(default_factory=list)
    #: chunks of text that came in the answers: a lower bound of the tokens generated
    chunks: int = 0
    samples: list[Sample] = field(default_factory=list)
    #: readings after the last answer, and after requests were broken off half-way
    after: list[Sample] = field(default_factory=list)
    after_abort: list[Sample] = field(default_factory=list)
    aborted: int = 0
    orca: str | None = None


@dataclass(slots=True)
class Facts:
    """What was found at rest, and under load where that was asked for."""

    asked_engine: str | None
    path: str
    #: the answer of the metrics path, or why there was none
    status: int | None = None
    content_type: str = ""
    size_bytes: int = 0
    error: SourceError | None = None
    mapping: EngineMapping | None = None
    signals: Signals | None = None
    multi_process: bool = False
    #: seconds per reading at rest
    times_s: list[float] = field(default_factory=list)
    #: connections that several readings one after another needed
    connections: int | None = None
    models: ServedModels | None = None
    models_found: str = ""
    health_status: int | None = None
    load: LoadFacts | None = None

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that the server says it serves."""
        return self.models.adapters if self.models is not None else ()

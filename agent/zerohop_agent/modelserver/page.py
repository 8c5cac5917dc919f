"""From the bytes of one answer to `Signals`: is it a whole metrics page, whose is it, and what does it say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from zerohop_agent.modelserver.engines import ENGINES
from zerohop_agent.modelserver.mapping import EngineMapping
from zerohop_agent.modelserver.plan import SURVEY_EVERY, Plan, Vocabulary, find_hits, survey
from zerohop_agent.modelserver.text import parse_value, split_sample
from zerohop_agent.signals import Signals, SourceError
from zerohop_snapshot.layout import UnhealthyReason

__all__ = ["MULTI_PROCESS_PAGE_BYTES", "PageReader", "detect"]

#: A real page of this size without `process_start_time_seconds` comes from a registry that is shared by several
#: processes
#: (prometheus_client leaves process series out there). Smaller pages are hand-made or of another library.
MULTI_PROCESS_PAGE_BYTES = 20_000
_MULTI_PROCESS_ENGINES = frozenset({"vllm", "sglang"})


class PageReader:
    """Reads the pages of one endpoint. Keeps the plan of the last page, nothing of its values.

    `engine` names the mapping to use; None finds it from the page. `engines` are those that exist, a user's own
    included.
    """

    def __init__(self, engine: str | None = None, engines: Mapping[str, EngineMapping] = ENGINES) -> None:
        if engine is not None and engine not in engines:
            raise ValueError(f"no engine is called {engine!r}; known are {', '.join(engines)}")
        self._configured = engine
        self._engines = engines
        self._vocabulary: Vocabulary | None = None
        self._plan: Plan | None = None
        self._reads_left = 0
        #: how often a page had other series than the one before
        self.surveys = 0
        #: True when the last page shows a server of several processes
        self.multi_process = False

    @property
    def engine(self) -> EngineMapping | None:
        """The mapping that the last page was read with; None before the first one."""
        return self._vocabulary.mapping if self._vocabulary is not None else None

    @property
    def names(self) -> frozenset[str]:
        """The metric names that the last page had, as the mapping spells them."""
        return self._plan.names if self._plan is not None else frozenset()

    def narrow_query(self) -> str | None:
        """Return the query that asks for the wanted metrics only; None where the engine does not know such."""
        vocabulary = self._vocabulary
        if vocabulary is None or not vocabulary.mapping.narrowable:
            return None
        return "&".join(f"name%5B%5D={name.decode()}" for name in sorted(vocabulary.names))

    def read(self, page: bytes, content_type: str = "") -> Signals:
        """Return what `page` says.

        Raises: SourceError with NOT_METRICS for anything but a whole page of metrics, and with ENGINE_UNKNOWN for a
        page of
        metrics that are no known engine's, or another one's than configured.
        """
        _require_whole(page, content_type)
        plan, vocabulary = self._plan, self._vocabulary
        # A plan without lines would fit any page.
        if plan is not None and vocabulary is not None and plan.names:
            signals = plan.read(page)
            if signals is not None:
                if self._reads_left > 0:
                    self._reads_left -= 1
                    return signals
                lines = page.split(b"\n")
                if plan.confirmed_by(lines, find_hits(lines, vocabulary)):
                    self._reads_left = SURVEY_EVERY
                    return signals
        return self._survey(page)

    def _survey(self, page: bytes) -> Signals:
        self._vocabulary = vocabulary = self._find_vocabulary(page)
        self._plan = plan = survey(page, vocabulary)
        self.surveys += 1
        self._reads_left = SURVEY_EVERY
        self.multi_process = plan.multi_process or (
            vocabulary.mapping.name in _MULTI_PROCESS_ENGINES
            and len(page) >= MULTI_PROCESS_PAGE_BYTES
            and "process_start_time_seconds" not in plan.names
        )
        signals = plan.read(page)
        if signals is None:  # a plan always fits the page it was made from
            raise AssertionError("a page does not fit its own plan")
        return signals

    def _find_vocabulary(self, page: bytes) -> Vocabulary:
        if self._configured is not None:
            mapping = self._engines[self._configured]
            vocabulary = _match(page, mapping)
            if vocabulary is not None:
                return vocabulary
            other = detect(page, self._engines)
            _require_metrics(page)
            seen = f"is {other.name}'s" if other is not None else "has none of its metrics"
            raise SourceError(UnhealthyReason.ENGINE_UNKNOWN, f"configured as {mapping.name}, but the page {seen}")
        if self._vocabulary is not None and (again := _match(page, self._vocabulary.mapping)) is not None:
            return again
        found = detect(page, self._engines)
        if found is None:
            _require_metrics(page)
            raise SourceError(UnhealthyReason.ENGINE_UNKNOWN, f"metrics, but of no engine known here: {_sample(page)}")
        vocabulary = _match(page, found)
        if vocabulary is None:
            raise AssertionError("a detected engine matches its page")
        return vocabulary


def detect(page: bytes, engines: Mapping[str, EngineMapping] = ENGINES) -> EngineMapping | None:
    """Return the first mapping one of whose prefixes starts a line of `page`."""
    return next((mapping for mapping in engines.values() if _match(page, mapping) is not None), None)


def _match(page: bytes, mapping: EngineMapping) -> Vocabulary | None:
    for start, vocabulary in _vocabularies(mapping):
        if page.startswith(start) or b"\n" + start in page:
            return vocabulary
    return None


# A mapping is a constant of the program or of its configuration, so this grows with neither time nor traffic.
_VOCABULARIES: dict[int, tuple[EngineMapping, tuple[tuple[bytes, Vocabulary], ...]]] = {}


def _vocabularies(mapping: EngineMapping) -> tuple[tuple[bytes, Vocabulary], ...]:
    known = _VOCABULARIES.get(id(mapping))
    if known is None or known[0] is not mapping:
        known = _VOCABULARIES[id(mapping)] = (mapping, tuple(_spellings(mapping)))
    return known[1]


def _spellings(mapping: EngineMapping) -> Iterator[tuple[bytes, Vocabulary]]:
    """Yield each way in which the names of `mapping` may be printed, with the start that tells it.

    The registered spelling first, then `_` for `:` (prometheus_client from 0.23 on answers so when OpenMetrics is asked
    for without `escaping=allow-utf-8`), then prefixes such as Ray's.
    """
    home = mapping.prefixes[0]
    for prefix in mapping.prefixes:
        before = prefix[: -len(home)] if prefix.endswith(home) else ""

        def registered(name: str, before: str = before) -> str:
            return before + name if name.startswith(home) else name

        yield prefix.encode(), Vocabulary(mapping, registered)
        if ":" in prefix:
            yield prefix.replace(":", "_").encode(), Vocabulary(mapping, _underscored(registered))


def _underscored(spelling: Callable[[str], str]) -> Callable[[str], str]:
    return lambda name: spelling(name).replace(":", "_")


def _require_whole(page: bytes, content_type: str) -> None:
    if not page or page.isspace():
        raise SourceError(UnhealthyReason.NOT_METRICS, "the page is empty")
    ended = page.endswith((b"\n# EOF", b"\n# EOF\n", b"\n# EOF\r\n"))
    if "openmetrics" in content_type and not ended:
        raise SourceError(UnhealthyReason.NOT_METRICS, "the page is cut: an OpenMetrics page ends with # EOF")
    if page[-1:] != b"\n" and not ended:
        if page.lstrip()[:1] in (b"<", b"{", b"["):
            raise _not_metrics(page)
        # A cut `12345` is a valid `123`, so nothing of such a page can be believed.
        raise SourceError(UnhealthyReason.NOT_METRICS, "the page is cut: its last line has no end")


def _require_metrics(page: bytes) -> None:
    if page.lstrip()[:1] in (b"<", b"{", b"[") or not any(
        _looks_like_metrics(line) for line in page.split(b"\n", 200)[:200]
    ):
        raise _not_metrics(page)


def _not_metrics(page: bytes) -> SourceError:
    first = page.lstrip()[:1]
    kind = {b"<": "HTML", b"{": "JSON", b"[": "JSON"}.get(first, "no metrics page")
    return SourceError(UnhealthyReason.NOT_METRICS, f"the answer is {kind}")


def _looks_like_metrics(line: bytes) -> bool:
    if line[:1] == b"#":
        return line.startswith((b"# TYPE ", b"# HELP "))
    sample = split_sample(line)
    return sample is not None and parse_value(line[sample[2] :]) is not None


def _sample(page: bytes) -> str:
    for line in page.split(b"\n", 200)[:200]:
        sample = split_sample(line)
        if sample is not None:
            return f"first series {sample[0].decode('ascii', 'replace')[:60]}"
    return "no series"

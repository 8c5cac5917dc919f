"""One client request as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zerohop_picker.request import prompt
from zerohop_picker.request.kinds import RequestKind

__all__ = ["DEFAULT_FAIRNESS_ID", "LLMRequest", "RequestKind"]

DEFAULT_FAIRNESS_ID = "default-flow"


@dataclass(slots=True)
class LLMRequest:
    """One request, parsed no further than routing needs.

    `headers` has lower-case names, pseudo-headers included (`:path`, `:method`); repeated ones are joined by a comma.
    `path` is without the query. `body` is the whole body, or None when the gateway does not show it (header-only
    modes, kinds that are routed by load alone, a body that was only partly buffered).
    """

    request_id: str
    method: str = "POST"
    path: str = "/"
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: RequestKind = RequestKind.OTHER
    #: The pool this stream belongs to (`namespace/name`), None where the picker serves a single one.
    pool: str | None = None
    #: The body's `model`, None when there is none to be seen.
    model: str | None = None
    stream: bool = False
    body: bytes | None = None
    #: The gateway's subset hint: `ip:port` or bare IPs. None: no hint. Never empty: that is refused earlier.
    subset: tuple[str, ...] | None = None
    #: `test-epp-endpoint-selection`, only with the conformance flag; it stands above `subset`.
    test_selection: tuple[str, ...] | None = None
    objective: str | None = None
    fairness_id: str = DEFAULT_FAIRNESS_ID
    #: Target model asked for by header (new or legacy name); a rewrite rule stands above it.
    target_model: str | None = None
    session_token: str | None = None
    session_id: str | None = None
    ttft_slo_ms: float | None = None
    tpot_slo_ms: float | None = None
    #: CLOCK_MONOTONIC moment by which the decision should have been made; 0: no deadline.
    deadline_ns: int = 0
    _prompt: bytes | None = None
    _salt: str | None = None

    @property
    def prompt_bytes(self) -> int:
        """Size of the prompt in bytes: exact once `canonical_prompt` was asked for, else the size of the body."""
        if self._prompt is not None:
            return len(self._prompt)
        return 0 if self.body is None else len(self.body)

    def canonical_prompt(self) -> bytes:
        """The prompt as one byte string whose prefixes are the conversation's; b"" when there is none. Cached."""
        if self._prompt is None:
            self._read_prompt()
        return self._prompt or b""

    @property
    def cache_salt(self) -> str | None:
        """The body's `cache_salt`: requests with different salts share no prefix."""
        if self._prompt is None:
            self._read_prompt()
        return self._salt

    def _read_prompt(self) -> None:
        self._prompt, self._salt = (b"", None) if self.body is None else prompt.canonical(self.kind, self.body)

"""The request as plugins see it: what the client asked, plus what we already know about its prompt and session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from zerohop_picker.request.model import LLMRequest
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.prefixes import Lookup
from zerohop_picker.state.sessions import Sessions
from zerohop_picker.state.view import Floats, View

#: Bytes of text per token, the field's rule of thumb.
BYTES_PER_TOKEN = 4


class Randomness(Protocol):
    """What is used of ``random.Random``."""

    def random(self) -> float: ...  # noqa: D102
    def getrandbits(self, k: int, /) -> int: ...  # noqa: D102


class Prefixes(Protocol):
    """What is needed of ``PrefixUse``."""

    def look_up(self, llm: LLMRequest, model: str | None, view: View) -> Lookup | None: ...  # noqa: D102


class Request:
    """One request at one moment (``now_ns``, CLOCK_MONOTONIC). Plugins read it; the pipeline alone changes it."""

    __slots__ = (
        "_looked_up",
        "_lookup",
        "_prefixes",
        "llm",
        "model",
        "now_ns",
        "priority",
        "random",
        "sessions",
        "view",
    )

    def __init__(
        self,
        llm: LLMRequest,
        view: View,
        now_ns: int,
        *,
        random: Randomness,
        prefixes: Prefixes | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        """Wrap ``llm``."""
        self.llm = llm
        self.view = view
        self.now_ns = now_ns
        self.random = random
        self.sessions = sessions
        #: The model the request will name at the model server, after rewrites.
        self.model = llm.model
        #: Priority of its objective; below 0 it may be shed.
        self.priority = 0
        self._prefixes = prefixes
        self._looked_up = prefixes is None
        self._lookup: Lookup | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """Request headers, names in lower case."""
        return self.llm.headers

    @property
    def prompt_tokens(self) -> int:
        """Prompt length in tokens, estimated at four bytes a token; 0 when the body is not seen."""
        if self.llm.body is None:
            return 0
        return max(1, self.llm.prompt_bytes // BYTES_PER_TOKEN)

    @property
    def prefix(self) -> Lookup | None:
        """What the prefix directory knows of this prompt; None where there is no directory or no prompt."""
        if not self._looked_up and self._prefixes is not None:
            self._looked_up = True
            self._lookup = self._prefixes.look_up(self.llm, self.model, self.view)
        return self._lookup

    def prefix_ratio(self, endpoints: Endpoints) -> Floats:
        """Return the share of the prompt's blocks that each endpoint has served before, 0..1; 0 without a prompt."""
        return self.matched_blocks(endpoints) / max(self.prompt_blocks, 1)

    @property
    def prompt_blocks(self) -> int:
        """The prompt's full blocks; 0 without a prompt."""
        lookup = self.prefix
        return 0 if lookup is None else lookup.blocks

    def matched_blocks(self, endpoints: Endpoints) -> Floats:
        """Return how many leading blocks of the prompt each endpoint has served before."""
        lookup = self.prefix
        matched = np.zeros(len(endpoints))
        if lookup is not None:
            for row, depth in lookup.depths.items():
                index = endpoints.find(row)
                if index >= 0:
                    matched[index] = depth
        return matched

    def uncached_tokens(self, endpoints: Endpoints) -> Floats:
        """Return the prompt tokens that each endpoint would have to prefill."""
        return self.prompt_tokens * (1.0 - self.prefix_ratio(endpoints))

"""The session affinity scorer."""

from __future__ import annotations

import numpy as np

from zerohop_picker.scheduling.affinity import Affinity, SessionIdConfig, read_id_config, read_token_config
from zerohop_picker.scheduling.plugin import Parameter, PluginType
from zerohop_picker.scheduling.request import Request
from zerohop_picker.state.endpoints import Endpoints
from zerohop_picker.state.sessions import TOKEN_HEADER
from zerohop_picker.state.view import Floats
from zerohop_process.strict import one_of, text

SESSION_PARAMETERS = (
    Parameter("strategy", one_of("encoded_endpoint_header", "session_id"), "encoded_endpoint_header", "how to know it"),
    Parameter("profileName", text, "", "profile whose endpoint is kept; empty: the primary one"),
    Parameter("encodedEndpointHeaderConfig", read_token_config, TOKEN_HEADER, "header that carries the token"),
    Parameter("sessionIdConfig", read_id_config, SessionIdConfig(), "headers that carry an id, and its lifetime"),
)


class SessionScorer(Affinity):
    """Scores the session's endpoint."""

    def __call__(self, endpoints: Endpoints, request: Request) -> Floats:
        """Return 1 for the session's endpoint and 0 for the rest; 0 for all without a session. Never unknown."""
        row = self.row(request)
        return np.zeros(len(endpoints)) if row is None else (endpoints.rows == row).astype(np.float64)


TYPES: tuple[PluginType, ...] = (
    PluginType(
        "session-affinity-scorer", "scorer", SessionScorer, parameters=SESSION_PARAMETERS, reads=("sessions",)
    ),
)  # fmt: skip

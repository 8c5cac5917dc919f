"""The cases: version 1 of the endpoint picker conformance suite. One place, data only.

A case is added with the rule it stands for and where that rule comes from; a case is never weakened for one picker.
`EPP` is the Endpoint Picker Protocol 1.0 of the Gateway API Inference Extension, `Envoy` the ext-proc contract.
"""

from __future__ import annotations

from zerohop_console.conformance.picker.cases.body_modes import BODY_MODES
from zerohop_console.conformance.picker.cases.destinations import DESTINATIONS
from zerohop_console.conformance.picker.cases.requests import REQUESTS
from zerohop_console.conformance.picker.cases.responses import RESPONSES
from zerohop_console.conformance.picker.script import Case

#: Raised when a case is added or changes what it demands.
SUITE_VERSION = "1"

CASES: tuple[Case, ...] = BODY_MODES + DESTINATIONS + REQUESTS + RESPONSES

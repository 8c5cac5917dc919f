"""An Envoy's configuration dump against what a picker needs from its gateway: where the dump comes from."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zerohop_console.doctor.finding import Finding, fail, skip
from zerohop_console.doctor.gateway_rules import CHECK, check_dump


def fetch(admin: str) -> Any:
    """The dump of an admin page. Raises: OSError, ValueError."""
    with urllib.request.urlopen(f"http://{admin}/config_dump?include_eds", timeout=10) as answer:
        return json.load(answer)


def check(admin: str | None, dump_file: Path | None) -> Iterator[Finding]:
    """Findings about a gateway; neither given: skipped."""
    if admin is None and dump_file is None:
        yield skip(CHECK, "no gateway to look at; give --envoy-admin HOST:PORT or --config-dump FILE")
        return
    try:
        dump = json.loads(dump_file.read_text()) if dump_file is not None else fetch(str(admin))
    except (OSError, ValueError, urllib.error.URLError) as error:
        yield fail(
            CHECK, f"no configuration dump from {dump_file or admin}: {error}", "kubectl port-forward its port 15000"
        )
        return
    try:
        yield from list(check_dump(dump))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        yield fail(
            CHECK, f"{dump_file or admin} is not the configuration dump of an Envoy: {type(error).__name__} {error}",
            "save /config_dump of its admin page as it is",
        )  # fmt: skip

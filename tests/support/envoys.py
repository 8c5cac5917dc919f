"""A real Envoy for tests: validate a bootstrap, or run it and learn its ports."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.processes import Processes
from support.waiting import eventually
from zerohop_console.demo.envoy import envoy_binary


def validate(bootstrap: Mapping[str, Any], directory: Path) -> None:
    """Raises: AssertionError with what Envoy says, unless it accepts the bootstrap."""
    path = directory / "bootstrap.json"
    path.write_text(json.dumps(bootstrap))
    command = [str(envoy_binary()), "-c", str(path), "--mode", "validate", "-l", "warning", "--disable-hot-restart"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class RunningEnvoy:
    """An Envoy that serves `bootstrap`; `port` is that of its first listener."""

    def __init__(self, run: Processes, bootstrap: Mapping[str, Any], directory: Path) -> None:
        config, admin = directory / "envoy.json", directory / "admin"
        config.write_text(json.dumps(bootstrap))
        self.process = run.start(
            envoy_binary(), "-c", config, "--admin-address-path", admin, "--concurrency", "1", "--disable-hot-restart",
            "-l", "warning",
        )  # fmt: skip
        self.admin = eventually(lambda: admin.exists() and admin.read_text(), 20)
        eventually(lambda: self.get("/ready").startswith("LIVE"), 20)
        listeners = json.loads(self.get("/listeners?format=json"))
        self.port = int(listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"])

    def get(self, path: str) -> str:
        """The admin page's answer."""
        try:
            with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def stat(self, name: str) -> int:
        """One counter or gauge."""
        return int(self.get(f"/stats?filter=^{name}$").rpartition(":")[2] or 0)

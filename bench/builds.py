"""The compiled wheel beside the sources it is made of: one decision, and the protocol core.

Run: python -m bench.builds, after `make build/compiled`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from bench import table

COMPILED = Path(__file__).parent.parent / "build" / "compiled"
ROUNDS = 3
# Prompts by size, at 16 endpoints with the default pipeline, and the core's share of a 2 kB request.
_DECISION = """
import tempfile
from pathlib import Path
from bench.decision import Node, timed
for prompt in (100, 2_000, 8_000):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        node = Node(Path(folder), 16, "")
        timed(node, prompt, 50, node.publish)
        print(f"decision, {prompt} bytes\\t{timed(node, prompt, 1000, None)}")
        print(f"decision right after a publish, {prompt} bytes\\t{timed(node, prompt, 250, node.publish)}")
        node.close()
"""
_PROTOCOL = re.compile(r"\| (headers only|headers \+ 2 kB body|one echoed response chunk) +\| ([\d.]+)")


def main() -> None:
    if not any(COMPILED.glob("*.so")):
        raise SystemExit(f"{COMPILED}: no compiled build there; make it with: make build/compiled")
    rounds: dict[str, list[dict[str, float]]] = {"sources": [], "compiled": []}
    for _ in range(ROUNDS):
        rounds["sources"].append(_run(None))
        rounds["compiled"].append(_run(COMPILED))
    best = {build: {what: min(run[what] for run in runs) for what in runs[0]} for build, runs in rounds.items()}
    rows = []
    for what, sources in best["sources"].items():
        compiled = best["compiled"][what]
        figures = {"sources us": round(sources, 1), "compiled us": round(compiled, 1)}
        rows.append({"what": what, **figures, "ratio": round(compiled / sources, 2)})
    print(table.text(rows))


def _run(packages: Path | None) -> dict[str, float]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if packages is not None:
        environment["PYTHONPATH"] = str(packages)

    def printed(*words: str) -> str:
        command = [sys.executable, *words]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout

    found: dict[str, float] = {}
    for line in printed("-c", _DECISION).splitlines():
        what, _, us = line.partition("\t")
        found[what] = float(us)
    for what, us in _PROTOCOL.findall(printed("-m", "bench.protocol")):
        found[f"protocol core, {what}"] = float(us)
    return found


if __name__ == "__main__":
    main()

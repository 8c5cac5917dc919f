"""`python -m bench [NAME ...]`: measure, and print tables and ratios of one run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import agent, fronts, generator, machine, memory, routers, snapshot, table

#: what runs without a name, in this order
DEFAULT = ("snapshot", "decision", "fronts", "agent", "memory")
#: those that are programs of their own
PROGRAMS = ("decision", "protocol", "extproc", "discovery", "engines")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "name",
        nargs="*",
        help=f"{', '.join(dict.fromkeys((*DEFAULT, *PROGRAMS, 'routers')))} (default: {' '.join(DEFAULT)})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    args = parser.parse_args()
    known = {*DEFAULT, *PROGRAMS, "routers"}
    unknown = [name for name in args.name if name not in known]
    if unknown:
        parser.error(f"{unknown[0]!r} is no benchmark; known are {', '.join(sorted(known))}")
    figures: dict[str, Any] = {"machine": machine.describe(), "generator": generator.name()}
    print(
        "  ".join(f"{name}: {value}" for name, value in figures["machine"].items()),
        f" load from: {figures['generator']}",
    )
    for name in args.name or DEFAULT:
        print(f"\n## {name}\n", flush=True)
        if name in PROGRAMS:
            subprocess.run([sys.executable, "-m", f"bench.{name}"], check=True)
            continue
        rows, notes = _measure(name)
        figures[name] = {"rows": rows, "notes": notes}
        print(table.text(rows))
        print(*("", *notes) if notes else (), sep="\n", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1))
    return 0


def _measure(name: str) -> tuple[list[dict[str, Any]], list[str]]:
    if name == "snapshot":
        return snapshot.run(), []
    if name == "fronts":
        rows = fronts.run()
        return rows, fronts.ratios(rows)
    if name == "agent":
        return agent.run(), []
    if name == "memory":
        return memory.run(), []
    rows = routers.run()
    return rows, routers.ratios(rows)


if __name__ == "__main__":
    sys.exit(main())

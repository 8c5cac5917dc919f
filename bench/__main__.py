"""`python -m bench [NAME ...]`: measure, and print tables and ratios of one run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import agent, fronts, generator, machine, memory, page, routers, snapshot, table

#: what runs without a name, in this order
DEFAULT = ("snapshot", "decision", "fronts", "agent", "memory")
#: those that are programs of their own
PROGRAMS = ("decision", "builds", "protocol", "extproc", "discovery", "engines")


def main() -> int:
    args = _arguments()
    figures: dict[str, Any] = {"machine": machine.describe(), "generator": generator.name()}
    header = ", ".join(f"{name} {value}" for name, value in figures["machine"].items())
    header += f"; load from {figures['generator']}"
    print(header)
    if args.write is not None:
        page.write(args.write, "machine", header)
    for name in args.name:
        print(f"\n## {name}\n", flush=True)
        text, figures[name] = _program(name) if name in PROGRAMS else _measured(name)
        print(text, flush=True)
        if args.write is not None and name in page.names(args.write):
            page.write(args.write, name, text)
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    known = tuple(dict.fromkeys((*DEFAULT, *PROGRAMS, "routers")))
    parser.add_argument("name", nargs="*", help=f"{', '.join(known)} (default: {' '.join(DEFAULT)})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="PAGE",
        help="put them into the page, between its bench: markers; all of its names",
    )
    args = parser.parse_args()
    unknown = [name for name in args.name if name not in known]
    if unknown:
        parser.error(f"{unknown[0]!r} is no benchmark; known are {', '.join(known)}")
    if not args.name:
        marked = page.names(args.write) if args.write is not None else DEFAULT
        args.name = [name for name in marked if name in known]
    return args


def _program(name: str) -> tuple[str, dict[str, Any]]:
    """Run a benchmark that prints its own table."""
    command = [sys.executable, "-m", f"bench.{name}"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return f"```\n{printed.strip()}\n```", {"printed": printed}


def _measured(name: str) -> tuple[str, dict[str, Any]]:
    notes: list[str] = []
    if name == "snapshot":
        rows = snapshot.run()
    elif name == "fronts":
        rows = fronts.run()
        notes = fronts.ratios(rows)
    elif name == "agent":
        rows = agent.run()
    elif name == "memory":
        rows = memory.run()
    else:
        rows = routers.run()
        notes = routers.ratios(rows)
    text = table.text(rows)
    if notes:
        text += "\n\n" + "\n".join(f"* {note}" for note in notes)
    return text, {"rows": rows, "notes": notes}


if __name__ == "__main__":
    sys.exit(main())

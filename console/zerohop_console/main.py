"""The `zerohop` command: one subcommand per program, each imported only when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from zerohop_process.errors import ConfigError
from zerohop_process.lifecycle import guarded


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: `module` offers `add_arguments(parser)` and `run(args) -> exit code`."""

    words: tuple[str, ...]
    module: str
    summary: str
    hidden: bool = False

    @property
    def name(self) -> str:
        """The words as they are typed."""
        return " ".join(self.words)


COMMANDS = (
    Command(
        ("agent",), "zerohop_agent.main", "read model servers, GPUs and the host into shared memory; export metrics"
    ),
    Command(("picker",), "zerohop_picker.main", "answer Envoy's external processing calls with the endpoint to use"),
    Command(("snapshot",), "zerohop_console.snapshot", "show what the pickers see now"),
    Command(("demo",), "zerohop_console.demo.main", "run the whole path on this machine with mock model servers"),
    Command(("check",), "zerohop_console.check", "check an EndpointPickerConfig and print the pipeline as it will run"),
    Command(("prefix",), "zerohop_console.prefix", "show size, hit rates and hottest prefixes of the prefix directory"),
    Command(
        ("conformance", "picker"),
        "zerohop_console.conformance.picker",
        "test any endpoint picker against the Endpoint Picker Protocol",
    ),
    Command(
        ("conformance", "model-server"),
        "zerohop_console.conformance.model_server",
        "test any model server against the model server protocol",
    ),
    Command(("doctor",), "zerohop_console.doctor", "look for what is wrong on this node and say how to fix it"),
    Command(("epp",), "zerohop_console.epp", "agent and picker in one container, by the flags of llm-d-router"),
    Command(("mock-server",), "zerohop_console.mockserver.main", "a model server without a model, for demos and tests"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 failed, 2 wrong configuration, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if _is_foreign(words):
        words.insert(0, "epp")
    parser = _parser()
    command = _command_of(words)
    if command is None:
        return guarded("", lambda: _explain(parser, words))
    return guarded(command.name, lambda: _run(command, words[len(command.words) :]))


def _is_foreign(words: Sequence[str]) -> bool:
    """Return whether these are flags of another picker, whose Deployment now runs our image."""
    if not words or not words[0].startswith("-") or words[0] in ("-h", "--help", "--version"):
        return False
    from zerohop_picker.compat import is_foreign

    return is_foreign(words)


def _command_of(words: Sequence[str]) -> Command | None:
    for command in COMMANDS:
        if tuple(words[: len(command.words)]) == command.words:
            return command
    return None


def _run(command: Command, words: Sequence[str]) -> int:
    module = _load(command)
    parser = argparse.ArgumentParser(
        prog=f"zerohop {command.name}",
        description=_sentence(command.summary),
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    module.add_arguments(parser)
    prepare = getattr(module, "prepare", list)  # a program may take the flags of the one that it replaces
    return int(module.run(parser.parse_args(prepare(words))))


def _load(command: Command) -> ModuleType:
    """Import the module of a command. Raises: ConfigError when this installation lacks it or something it needs."""
    try:
        module = importlib.import_module(command.module)
        return module if hasattr(module, "add_arguments") else importlib.import_module(f"{command.module}.main")
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.startswith("zerohop_"):
            raise ConfigError(f"this installation does not contain {missing}") from error
        raise ConfigError(f"the Python package {missing!r} is missing; run: pip install zerohop") from error


def _explain(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    group = [command for command in COMMANDS if words and command.words[0] == words[0]]
    if group and (len(words) == 1 or words[1] in ("-h", "--help")):
        rows = "\n".join(f"  zerohop {command.name:26}{command.summary}" for command in group)
        print(f"usage: zerohop {words[0]} {{{','.join(command.words[1] for command in group)}}} ...\n\n{rows}")
        return 0 if len(words) > 1 else 2
    if group:
        raise ConfigError(f"'{' '.join(words[:2])}' is no command; see 'zerohop {words[0]} --help'")
    if not words:
        parser.print_help(sys.stderr)
        return 2
    parser.parse_args(words)  # --help and --version end here, as does anything unknown
    return 2


def _parser() -> argparse.ArgumentParser:
    width = max(len(command.name) for command in COMMANDS) + 2
    listing = "\n".join(f"  {command.name:{width}}{command.summary}" for command in COMMANDS if not command.hidden)
    parser = argparse.ArgumentParser(
        prog="zerohop",
        usage="zerohop [-h] [--version] COMMAND ...",
        description="An endpoint picker for LLM inference that decides from a snapshot in shared memory.",
        epilog=f"commands:\n{listing}\n\n'zerohop COMMAND --help' says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument("command", metavar="COMMAND", type=_unknown, help=argparse.SUPPRESS)
    return parser


def _unknown(word: str) -> str:
    import difflib

    names = [command.words[0] for command in COMMANDS]
    near = difflib.get_close_matches(word, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "see 'zerohop --help'"
    raise argparse.ArgumentTypeError(f"{word!r} is no command; {hint}")


class _Version(argparse.Action):
    """Prints the version; reading the package's metadata costs more than the rest of the help together."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import PackageNotFoundError, version

        from zerohop_picker.compiled import compiled

        try:
            number = version("zerohop")
        except PackageNotFoundError:
            number = "(not installed)"
        print(f"zerohop {number}{' (compiled)' if compiled() else ''}")
        parser.exit(0)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    sys.exit(main())

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import Processes, zerohop_command
from zerohop_console.main import COMMANDS, main


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for command in COMMANDS:
        assert f"  {command.name} " in shown


def test_help_imports_no_component() -> None:
    # Fast help, and help at all where a component is broken or absent.
    code = (
        "import sys\nfrom zerohop_console.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith(('zerohop_agent', 'zerohop_picker', 'grpc', 'numpy'))])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    # The run on the compiled build says so: it would prove nothing on the sources.
    build = " (compiled)" if os.environ.get("ZEROHOP_TEST_BUILD") == "compiled" else ""
    assert capsys.readouterr().out == f"zerohop {version('zerohop')}{build}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["agnet"], "'agnet' is no command; did you mean 'agent'?"),
        (["xyzzy"], "'xyzzy' is no command; see 'zerohop --help'"),
        (["conformance", "pickr"], "'conformance pickr' is no command"),
        (["snapshot", "--shmdir", "/x"], "unrecognized arguments: --shmdir"),
        (["snapshot", "--watch", "--interval", "500"], "'500' is not a duration; write 500ms or 500s"),
        (["snapshot", "--watch", "--interval", "1ms"], "--interval: less than 10ms"),
        (["demo", "--requests", "0"], "--requests: must lie between 1 and 1000000"),
        (["demo", "--real-vllm", "/nowhere"], "--real-vllm: /nowhere holds no venv/bin/vllm"),
        (["mock-server", "--listen", "nowhere"], "'nowhere' has no port"),
        (["mock-server", "--slow-factor", "0"], "--slow-factor: must be positive"),
        ([], "usage: zerohop"),
        (["conformance"], ""),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_component_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "zerohop_agent.main", None)
    assert main(["agent"]) == 2
    assert "this installation does not contain zerohop_agent" in capsys.readouterr().err


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([*command.words, "--help"])
        assert ended.value.code == 0, command.name
        assert f"usage: zerohop {command.name}" in capsys.readouterr().out


def test_the_installed_program_is_the_same(run: Processes) -> None:
    program = Path(sys.executable).parent / "zerohop"
    shown = [subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
             for command in ([program], zerohop_command())]  # fmt: skip
    assert shown[0] == shown[1]

"""The distribution as a person installs it: sdist, wheel from the sdist, an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGES = {
    "zerohop_agent", "zerohop_console", "zerohop_engine", "zerohop_picker", "zerohop_process", "zerohop_snapshot",
}  # fmt: skip

pytestmark = [pytest.mark.xdist_group("packaging"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from its content alone."""
    out = tmp_path_factory.mktemp("dist")
    # --no-isolation: hatchling is installed here, so no network is needed.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(REPOSITORY)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def bare(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(built[1])], check=True)
    return python


def test_the_wheel_takes_no_name_but_ours(built: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(built[1]).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES
    assert all(f"{package}/py.typed" in names for package in PACKAGES)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_holds_every_module_of_the_tree(built: tuple[Path, Path]) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", *(f"*/{package}/*" for package in sorted(PACKAGES))],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    expected = {line.partition("/")[2] for line in tracked.stdout.splitlines() if (REPOSITORY / line).exists()}
    assert expected <= set(zipfile.ZipFile(built[1]).namelist())


def test_the_sdist_holds_sources_and_contracts_and_no_environment(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "proto/extproc.proto"} <= names
    assert not [name for name in names if name.startswith((".venv", "tests/__pycache__", "build"))]


def test_snapshot_and_engine_need_the_standard_library_alone(bare: Path) -> None:
    code = (
        "import sys, pathlib, pkgutil, zerohop_snapshot, zerohop_engine\n"
        "from zerohop_snapshot import cells, enginecell, layout, pickercell, reader, writer\n"
        "for found in pkgutil.iter_modules(zerohop_engine.__path__): __import__(f'zerohop_engine.{found.name}')\n"
        "with_them = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(name for name in with_them if not name.startswith('_') and name != 'sitecustomize'))\n"
        "made = writer.SnapshotWriter(pathlib.Path(sys.argv[1]))\n"
        "made.publish()\n"
        "print(reader.SnapshotReader(pathlib.Path(sys.argv[1])).read().sequence)\n"
    )
    shown = _isolated(bare, "-c", code, str(bare.parent.parent / "shm"))
    assert shown == "['zerohop_engine', 'zerohop_snapshot']\n1\n"


def test_the_command_needs_nothing_for_its_help_and_names_what_it_misses(bare: Path) -> None:
    def zerohop(*words: str) -> subprocess.CompletedProcess[str]:
        program = [str(bare.parent / "zerohop"), *words]
        return subprocess.run(program, capture_output=True, text=True, check=False, env=_environment())

    shown = zerohop("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "usage: zerohop" in shown.stdout
    refused = zerohop("snapshot")
    assert refused.returncode == 2
    assert (
        refused.stderr == "zerohop snapshot: error: the Python package 'msgpack' is missing; run: pip install zerohop\n"
    )


def test_the_command_works_with_its_dependencies(bare: Path) -> None:
    # The dependencies of this very environment, behind the installed wheel.
    site = next(path for path in sys.path if path.endswith("site-packages"))
    code = (
        f"import sys; sys.path.append({site!r})\n"
        "from zerohop_console.main import COMMANDS, main\n"
        "import zerohop_console\n"
        "assert 'site-packages' in zerohop_console.__file__, zerohop_console.__file__\n"
        "for command in COMMANDS:\n"
        "    try: main([*command.words, '--help'])\n"
        "    except SystemExit as ended: assert ended.code == 0, command\n"
        "    else: raise AssertionError(command)\n"
    )
    assert "usage: zerohop picker" in _isolated(bare, "-c", code)


def _isolated(python: Path, *arguments: str) -> str:
    done = subprocess.run(
        [python, "-I", *arguments], capture_output=True, text=True, check=False, env=_environment(), cwd=python.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

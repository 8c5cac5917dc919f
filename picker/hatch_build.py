"""Compiles the modules that every request passes through, with mypyc, into a wheel of this platform.

Only where it is asked for (`HATCH_BUILD_HOOKS_ENABLE=1 pip wheel .`, `make wheel`): without it, and in an editable
install, the same sources run as they are, at about half the speed. Needs a C compiler.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: By the library that they end up in. A library is loaded whole, and a model server loads zerohop_snapshot alone.
LIBRARIES: Final = {
    "zerohop_snapshot": (
        "snapshot/zerohop_snapshot/cells.py",
        "snapshot/zerohop_snapshot/pickercell.py",
        "snapshot/zerohop_snapshot/prefix.py",
        "snapshot/zerohop_snapshot/prefixtable.py",
    ),
    "zerohop_picker": (
        "picker/zerohop_picker/fronts/authority.py",
        "picker/zerohop_picker/fronts/calls.py",
        "picker/zerohop_picker/fronts/framing.py",
        "picker/zerohop_picker/fronts/native_connection.py",
        "picker/zerohop_picker/fronts/native_stream.py",
        "picker/zerohop_picker/counting.py",
        "picker/zerohop_picker/models/catalog.py",
        "picker/zerohop_picker/models/draw.py",
        "picker/zerohop_picker/protocol/*.py",
        "picker/zerohop_picker/request/*.py",
        "picker/zerohop_picker/scheduling/catalogs.py",
        "picker/zerohop_picker/scheduling/fallback.py",
        "picker/zerohop_picker/scheduling/filters/prefix.py",
        "picker/zerohop_picker/scheduling/measures.py",
        "picker/zerohop_picker/scheduling/pickers.py",
        "picker/zerohop_picker/scheduling/pipeline.py",
        "picker/zerohop_picker/scheduling/refusals.py",
        "picker/zerohop_picker/scheduling/request.py",
        "picker/zerohop_picker/scheduling/scheduler.py",
        "picker/zerohop_picker/scheduling/scorers/adapters.py",
        "picker/zerohop_picker/scheduling/scorers/cache.py",
        "picker/zerohop_picker/scheduling/scorers/load.py",
        "picker/zerohop_picker/scheduling/scorers/normalise.py",
        "picker/zerohop_picker/state/*.py",
    ),
}
#: What stays as it is: msgspec looks into the classes of shapes.py; mypyc makes unsafe code of dataclasses that have
#: slots or are inherited from (a segmentation fault in both cases); and packages hold no code.
NOT_COMPILED: Final = ("__init__.py", "shapes.py", "model.py", "settings.py")
ROOTS: Final = ("agent", "console", "engine", "picker", "process", "snapshot")


class Compile(BuildHookInterface[Any]):
    """Adds the compiled modules to the wheel, beside their sources."""

    PLUGIN_NAME = "custom"
    _out: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the wheel is an editable one."""
        if version == "editable":
            return
        if shutil.which(os.environ.get("CC", "cc")) is None:
            raise RuntimeError("a compiled wheel needs a C compiler: install gcc, or unset HATCH_BUILD_HOOKS_ENABLE")
        out = self._out = Path(tempfile.mkdtemp(prefix="zerohop-compiled-"))
        compile_into(out, Path(self.root))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for library in out.rglob("*.so"):
            build_data["force_include"][str(library)] = str(library.relative_to(out))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what the wheel has been made of."""
        if self._out is not None:
            shutil.rmtree(self._out)


def compile_into(out: Path, root: Path) -> None:
    """Compile the modules of the checkout `root` into `out`, laid out as in site-packages."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    os.chdir(root)  # mypyc names modules by paths from here; the build ends with this process
    os.environ["MYPYPATH"] = ":".join(ROOTS)
    groups: list[tuple[list[str], str | None]] = [
        ([str(path) for path in sources(root, patterns)], library) for library, patterns in LIBRARIES.items()
    ]
    options = ["--config-file=", "--explicit-package-bases", "--namespace-packages", "--ignore-missing-imports"]
    everything = [path for paths, _ in groups for path in paths]
    modules = mypycify([*options, *everything], separate=groups, opt_level="3", target_dir=str(out / "c"))
    distribution = Distribution({"name": "zerohop", "ext_modules": modules})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(out), str(out / "o")
    distribution.run_command("build_ext")


def sources(root: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Return the files to compile, relative to `root`. Raises: ValueError for a pattern or file that will not do."""
    found: list[Path] = []
    for pattern in patterns:
        matches = [path for path in sorted(root.glob(pattern)) if path.name not in NOT_COMPILED]
        if not matches:
            raise ValueError(f"{pattern}: no such module")
        found += matches
    for path in found:
        if "@dataclass" in path.read_text(encoding="utf-8"):
            raise ValueError(f"{path}: mypyc makes unsafe code of some dataclasses; write a class or a NamedTuple")
    return [path.relative_to(root) for path in found]

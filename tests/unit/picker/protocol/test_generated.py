"""The committed code is what `proto/generate` writes now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from zerohop_agent._pb import kubelet_pb2
from zerohop_picker._pb import extproc_pb2, health_pb2

PROTO = Path(__file__).resolve().parents[4] / "proto"


@pytest.mark.parametrize(
    ("package", "module"),
    [("zerohop_picker", extproc_pb2), ("zerohop_picker", health_pb2), ("zerohop_agent", kubelet_pb2)],
)
def test_generated_code_is_current(package: str, module: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "set"
    name = f"{package}/_pb/{module.__name__.rpartition('.')[2].removesuffix('_pb2')}.proto"
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{package}/_pb={PROTO}",
        f"--descriptor_set_out={out}",
        name,
    ]
    subprocess.run(command, check=True, env={"PYTHONWARNINGS": "ignore"})
    (compiled,) = FileDescriptorSet.FromString(out.read_bytes()).file
    committed = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    assert _without_json_names(compiled) == _without_json_names(committed)


def _without_json_names(file: FileDescriptorProto) -> str:
    """As text, without the names for JSON, which a descriptor set has and generated code has not."""
    return "\n".join(line for line in str(file).splitlines() if "json_name" not in line)

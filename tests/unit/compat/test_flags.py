"""Command lines of the pickers that people replace, in our words."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import pytest

from zerohop_agent import discovery
from zerohop_picker import compat
from zerohop_picker.config import PickerConfig, add_arguments, from_arguments
from zerohop_process.address import Address, Listen
from zerohop_process.errors import ConfigError


def everywhere(port: int) -> str:
    """What `:PORT` means: every address, of both families where the machine has both."""
    return f"[::]:{port}" if socket.has_dualstack_ipv6() else f"0.0.0.0:{port}"


def picker(words: list[str]) -> PickerConfig:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_arguments(parser)
    return from_arguments(parser.parse_args(compat.prepare(words)))


def agent(words: list[str]) -> discovery.DiscoverySettings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--scrape-interval")
    parser.add_argument("--log-format")
    parser.add_argument("--log-level")
    discovery.add_arguments(parser)
    return discovery.from_arguments(parser.parse_args(compat.translate(words).agent))


#: As the conformance manifests of Gateway API Inference Extension start their reference picker.
CONFORMANCE = [
    "--pool-name", "primary-inference-pool", "--pool-namespace", "gateway-conformance-app-backend",
    "--zap-encoder", "json", "--grpc-port", "9002", "--grpc-health-port", "9003",
]  # fmt: skip
#: As KServe starts llm-d's picker for an LLMInferenceService.
KSERVE = [
    "--v=4", "--pool-name", "phi3-inference-pool", "--pool-namespace", "models", "--pool-group",
    "inference.networking.x-k8s.io", "--zap-encoder", "json", "--grpc-port", "9002", "--grpc-health-port", "9003",
    "--secure-serving", "--model-server-metrics-scheme", "https", "--model-server-metrics-https-insecure-skip-verify",
    "--cert-path", "/var/run/kserve/tls",
    "--config-text", "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n",
]  # fmt: skip
#: As a benchmark harness starts llm-d's picker without TLS.
BENCHMARK = [
    "--pool-name", "bench-pool", "--config-file", "/config/epp.yaml", "--grpc-port", "9102",
    "--grpc-health-port", "9103",
    "--metrics-port", "9190", "--secure-serving=false", "--health-checking=false", "--tracing=false",
    "--metrics-endpoint-auth=false", "--grpc-max-recv-msg-size", "10MiB", "--grpc-max-send-msg-size", "10MiB",
]  # fmt: skip


def test_conformance_arguments() -> None:
    config = picker(CONFORMANCE)
    assert [entry.listen for entry in config.pool] == [Listen.parse(everywhere(9002))]
    assert config.pool[0].pool == "gateway-conformance-app-backend/primary-inference-pool"
    assert config.health_address == Address.parse(everywhere(9003))
    assert config.metrics_address == Address.parse(everywhere(9090))
    assert config.secure_serving
    assert config.log_format == "json"
    settings = agent(CONFORMANCE)
    assert settings.scope == "pool"
    assert settings.pools == (("gateway-conformance-app-backend", "primary-inference-pool"),)


def test_kserve_arguments() -> None:
    config = picker(KSERVE)
    assert config.cert_path == Path("/var/run/kserve/tls")
    assert config.config_text is not None
    assert config.config_text.startswith("apiVersion")
    assert config.log_level == "debug"
    settings = agent(KSERVE)
    assert (settings.metrics_scheme, settings.pool_group) == ("https", "inference.networking.x-k8s.io")


def test_benchmark_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESPACE", raising=False)
    config = picker(BENCHMARK)
    assert not config.secure_serving
    assert config.pool[0].pool == "default/bench-pool"
    assert config.max_request_bytes == 10 * 1024 * 1024
    assert config.metrics_address == Address.parse(everywhere(9190))


def test_selector_instead_of_a_pool() -> None:
    words = ["-endpoint-selector", "app=vllm,tier=gpu", "-endpoint-target-ports=8000,8001", "-pool-namespace", "m"]
    static = agent(words).static_pool
    assert static is not None
    assert (static.match_labels, static.target_ports) == ((("app", "vllm"), ("tier", "gpu")), (8000, 8001))
    assert (static.namespace, static.name) == ("m", "static")


@pytest.mark.parametrize(
    ("words", "level"),
    [(["-v", "2"], "info"), (["-v=5"], "debug"), (["--v", "4"], "debug"), (["--zap-log-level=error"], "error")],
)
def test_verbosity(words: list[str], level: str) -> None:
    assert picker(words).log_level == level


@pytest.mark.parametrize(("text", "truth"), [("t", True), ("F", False), ("1", True), ("0", False), ("TRUE", True)])
def test_booleans_as_go_reads_them(text: str, truth: bool) -> None:
    assert picker(["--pool-name=a", f"--secure-serving={text}"]).secure_serving is truth


def test_our_own_command_line_is_left_alone() -> None:
    words = ["--listen", "unix:/run/x.sock", "--config-file", "-v", "--secure-serving"]
    assert compat.prepare(words[:2]) == words[:2]
    assert compat.prepare(["--listen", ":1", "--secure-serving"]) == ["--listen", ":1", "--secure-serving"]


def test_ours_and_theirs_together() -> None:
    config = picker(["--listen", "unix:/run/x.sock", "--grpc-health-port", "1", "--workers", "2", "--shm-dir", "/x"])
    assert config.listen == (Listen(path="/run/x.sock"),)
    assert not config.pool
    assert config.health_address == Address.parse(everywhere(1))
    assert config.workers == 2


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["--pool-name=a", "--endpoint-selector=app=b"], "--endpoint-selector"),
        (["--endpoint-selector=app=b"], "--endpoint-target-ports"),
        (["--grpc-port=http"], "--grpc-port"),
        (["--pool-name"], "--pool-name"),
        (["--tracing=maybe"], "--tracing"),
        (["--tls-min-version=VersionTLS13"], "--tls-min-version"),
        (["--zap-encoder=xml"], "--zap-encoder"),
        (["-v=loud"], "-v"),
        (["--pool-name=a", "--cert-path=/x", "--secure-serving=false"], "--cert-path"),
    ],
)
def test_mistakes_name_the_flag(words: list[str], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        compat.prepare(words)


def test_every_flag_of_theirs_is_taken() -> None:
    for flag in compat.FLAGS:
        value = {"grpc-port": "1", "grpc-health-port": "1", "metrics-port": "1", "v": "1", "zap-encoder": "json"}
        words = [f"--{flag.name}" if flag.kind == "bool" else f"--{flag.name}={value.get(flag.name, '')}"]
        assert not [word for word in compat.translate(words).picker if f"--{flag.name}" in word and not flag.shared]

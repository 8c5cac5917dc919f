from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from zerohop_agent import config as configuration
from zerohop_agent.config import AgentConfig
from zerohop_process.address import Address
from zerohop_process.errors import ConfigError


def read(*words: str) -> AgentConfig:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    configuration.add_arguments(parser)
    return configuration.from_arguments(parser.parse_args(words))


def addresses(config: AgentConfig) -> list[str]:
    return [str(spec.address) for spec in config.endpoints.endpoints]


def test_defaults() -> None:
    config = read()
    assert config.shm_dir == Path("/dev/shm/zerohop")
    assert (config.scrape_interval_ns, config.publish_interval_ns) == (50_000_000, 5_000_000)
    assert config.metrics_address == Address("127.0.0.1", 9400)
    assert (config.gpu, config.endpoint_capacity, config.file_mode) == (True, 256, 0o640)
    assert config.discovery.source == "off"
    assert configuration.warnings(config) == []


def test_flags() -> None:
    config = read(
        "--endpoint",
        "10.0.0.1:1",
        "--endpoint",
        "[::1]:2",
        "--scrape-interval",
        "1s",
        "--metrics-address",
        "off",
        "--gpu",
        "off",
    )
    assert addresses(config) == ["10.0.0.1:1", "[::1]:2"]
    assert (config.scrape_interval_ns, config.metrics_address, config.gpu) == (1_000_000_000, None, False)
    everywhere = read("--metrics-address", ":9400").metrics_address
    assert everywhere in (Address("0.0.0.0", 9400), Address("::", 9400))


WHOLE = """
shm_dir: /run/z
scrape_interval: 100ms
stale_after: 3s
gpu: off
endpoint: 10.0.0.1:1
endpoint_capacity: 32
file_mode: '0600'
namespaces: [a, b]
write_status: false
discovery: api
node_name: n1
endpoints:
  - {address: 10.0.0.2:1, drain: true}
pools: [{name: p}]
mappings:
  acme: {prefixes: ["acme:"], fields: {waiting: "acme:queue"}}
model_servers: {timeout: 2s, health_interval: 3s, orca: true, narrow: false, models_path: /models, tls_ca_file: null}
"""


def test_a_file_says_the_same_as_flags_and_more(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(WHOLE)
    config = read("--config", str(path))
    assert (config.shm_dir, config.scrape_interval_ns, config.bounds.stale_ns) == (
        Path("/run/z"),
        100_000_000,
        3_000_000_000,
    )
    assert (config.gpu, config.endpoint_capacity, config.node) == (False, 32, "n1")
    assert addresses(config) == ["10.0.0.2:1", "10.0.0.1:1"]
    assert config.endpoints.endpoints[0].draining
    assert config.endpoints.endpoints[0].pools == ("p",)
    assert (config.discovery.source, config.discovery.namespaces, config.discovery.write_status) == (
        "api",
        ("a", "b"),
        False,
    )
    servers = config.model_servers
    assert (servers.timeout_ns, servers.health_interval_ns, servers.models_path) == (2 * 10**9, 3 * 10**9, "/models")
    assert (servers.orca, servers.narrow, servers.tls_verify, servers.tls_ca_file) == (True, False, False, None)
    assert "acme" in config.mappings
    assert "vllm" in config.mappings


def test_a_flag_goes_before_the_file_wherever_it_stands_and_lists_add_up(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("scrape_interval: 100ms\npublish_interval: 10ms\nendpoint: [10.0.0.1:1]\n")
    for words in (
        ("--scrape-interval", "50ms", "--endpoint", "10.0.0.2:1", "--config", str(path)),
        ("--config", str(path), "--endpoint", "10.0.0.2:1", "--scrape-interval", "50ms"),
    ):
        config = read(*words)
        assert (config.scrape_interval_ns, config.publish_interval_ns) == (50_000_000, 10_000_000)
        assert addresses(config) == ["10.0.0.1:1", "10.0.0.2:1"]


def test_fields_may_be_spelled_as_flags_are(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("shm-dir: /run/z\nscrape-interval: 100ms\nmetrics-address: off\n")
    config = read("--config", str(path))
    assert (config.shm_dir, config.scrape_interval_ns, config.metrics_address) == (Path("/run/z"), 100_000_000, None)


def test_an_endpoint_described_in_the_file_and_named_by_a_flag_is_one(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("endpoints: [{address: 10.0.0.1:1, engine: vllm}]\n")
    config = read("--config", str(path), "--endpoint", "10.0.0.1:1")
    assert [spec.engine for spec in config.endpoints.endpoints] == ["vllm"]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("scrape_interval: 50", 1, "50ms"),
        ("\nscrape_intervall: 50ms", 2, "did you mean 'scrape_interval'"),
        ("scrape-intervall: 50ms", 1, "did you mean 'scrape_interval'"),
        ("scrape_interval: 50ms\nscrape-interval: 50ms", 2, "the same field as in line 1"),
        ("gpu: maybe", 1, "not one of auto, off"),
        ("endpoint: [1]", 1, "no port"),
        ("endpoint_capacity: many", 1, "endpoint_capacity"),
        ("write_status: 3", 1, "true or false"),
        ("scrape_interval: [50ms]", 1, "found a list"),
        ("shm_dir: {a: b}", 1, "expected a value"),
        ("file_mode: 0640", 1, "in quotes"),
        ("file_mode: 'rw'", 1, "not a file mode"),
        ("gpu: {intervall: 1s}", 1, "interval"),
        ("mappings: {vllm: {field: {}}}", 1, "field"),
        ("model_servers: {time_out: 1s}", 1, "timeout"),
        ("model_servers:\n  timeout: 0", 2, "between 1ms and 1h"),
        ("model_servers: {models_path: models}", 1, "starts with '/'"),
        ("model_servers:\n  tls_verify: true\n  tls_ca_file: /no/such", 3, "cannot be used"),
        ("model_servers: {tls_ca_file: /etc/ssl/cert.pem}", 1, "tls_"),
        ("endpoints: [{address: x}]", 1, "no port"),
        ("a: [", 1, "not valid YAML"),
        ("- a", 1, "expected a mapping"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read("--config", str(path))
    assert f"{path}:{line}" in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--scrape-interval", "0"), "--scrape-interval: 0 is out of range"),
        (("--publish-interval", "1us"), "--publish-interval"),
        (("--overloaded-kv-cache", "95"), "between 0 and 1"),
        (("--endpoint-capacity", "0"), "--endpoint-capacity"),
        (("--metrics-address", "9400"), "--metrics-address"),
        (("--config", "/no/such/file"), "no such file"),
        (("--discovery", "api", "--node-name", ""), "node's name is unknown"),
    ],
)
def test_a_mistake_in_the_flags(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(*words)


def test_what_hardly_can_be_meant_is_warned_about() -> None:
    config = read("--scrape-interval", "1s", "--stale-after", "2s", "--publish-interval", "2s")
    stale, publish = configuration.warnings(config)
    assert "--stale-after 2s" in stale
    assert "--publish-interval 2s" in publish

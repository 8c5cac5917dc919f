"""Engines that a user adds or corrects in the configuration."""

from __future__ import annotations

import textwrap

import pytest

from zerohop_agent.modelserver import mapping_file
from zerohop_agent.modelserver.engines import ENGINES
from zerohop_agent.modelserver.mapping_file import read_mappings
from zerohop_agent.modelserver.page import PageReader
from zerohop_process.errors import ConfigError
from zerohop_process.strict import load_yaml


def test_the_example_of_the_documentation() -> None:
    assert mapping_file.__doc__ is not None
    text = textwrap.dedent(mapping_file.__doc__.split("\n\n", 1)[1])
    engines = read_mappings(load_yaml(text, "agent.yaml").members()["mappings"])
    page = (
        'acme:queue_depth{a="1"} 3\nacme:queue_depth{a="2"} 4\nacme:kv_percent 50\nacme:running 2\n'
        'acme:tokens_total{kind="output"} 7\nacme:tokens_total{kind="input"} 70\n'
        'acme:config_info{block_size="16"} 1\nacme:adapters{active="a,b"} 9\n'
    )
    signals = PageReader(engines=engines).read(page.encode())
    assert (signals.waiting, signals.running, signals.kv_cache_usage) == (7, 2, 0.5)
    assert (signals.generation_tokens, signals.block_size, signals.lora_running) == (7, 16, frozenset({"a", "b"}))
    page = "vllm:num_requests_waiting 3\nvllm:num_requests_swapped 2\nvllm:num_requests_running 1\n"
    signals = PageReader(engines=engines).read(page.encode())
    assert (signals.waiting, signals.running) == (5, 1)


def test_nothing_is_the_built_in_engines() -> None:
    assert read_mappings(None) is ENGINES
    assert read_mappings(load_yaml("", "a.yaml")) is ENGINES


def test_a_corrected_engine_is_read_as_before_but_for_the_correction() -> None:
    engines = read_mappings(load_yaml("{vllm: {fields: {waiting: 'vllm:mine'}}, b: {prefixes: [b]" + _B, "a.yaml"))
    assert (engines["vllm"].narrowable, engines["vllm"].health_path) == (True, "/health")
    assert (engines["b"].narrowable, engines["b"].health_path) == (False, "/live")


_B = ", fields: {running: b}, health_path: /live}}"


def test_ratios_products_and_extension() -> None:
    text = """
    mine:
      extends: vllm
      prefixes: ["mine:"]
      fields:
        kv_cache_usage: {part: "mine:used", whole: {metric: "mine:blocks", where: {kind: max}}}
        kv_capacity_tokens: {metric: "mine:info", labels: [blocks, size]}
        ttft_sum_s: {metric: "mine:ttft_ms_sum", scale: 0.001}
    """
    engines = read_mappings(load_yaml(textwrap.dedent(text), "a.yaml"))
    page = 'mine:used 3\nmine:blocks{kind="max"} 12\nmine:blocks{kind="free"} 9\n'
    page += 'mine:info{blocks="4",size="5"} 1\nmine:ttft_ms_sum 2500\n'
    signals = PageReader("mine", engines).read(page.encode())
    assert (signals.kv_cache_usage, signals.kv_capacity_tokens, signals.ttft_sum_s) == (0.25, 20, 2.5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x: {prefixes: [a], fields: {wating: a}}", "did you mean 'waiting'"),
        ("x: {prefixes: [a], fields: {models: a}}", "no signal is called 'models'"),
        ("x: {prefixes: [a], fields: {waiting: 'a b'}}", "is no name of a metric"),
        ("x: {prefixes: [a], fields: {waiting: []}}", "the list is empty"),
        ("x: {prefixes: [a], fields: {waiting: {metric: a, combine: median}}}", "'median' is not one of"),
        ("x: {prefixes: [a], fields: {waiting: {metric: a, were: {}}}}", "did you mean 'where'"),
        ("x: {prefixes: [a], fields: {lora_running: a}}", "list of names"),
        ("x: {prefixes: [a], fields: {kv_capacity_tokens: {metric: a, labels: [b]}}}", "two labels"),
        ("x: {fields: {waiting: a}}", "'prefixes' is missing"),
        ("x: {prefixes: [a]}", "'fields' is missing"),
        ("x: {prefixes: [''], fields: {waiting: a}}", "'prefixes' is missing"),
        ("x: {extends: vlm, prefixes: [a]}", "did you mean 'vllm'"),
        ("vllm: {filds: {}}", "did you mean 'fields'"),
        ("x: 3", "expected a mapping"),
    ],
)
def test_mistakes_are_named_with_their_place(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_mappings(load_yaml(text, "agent.yaml"))
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("agent.yaml:1")

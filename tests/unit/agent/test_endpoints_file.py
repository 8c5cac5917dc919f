from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.waiting import eventually_async
from zerohop_agent.endpoints import EndpointSet
from zerohop_agent.endpoints_file import EndpointsFileState, follow, parse, resolved
from zerohop_process.address import Address
from zerohop_process.errors import ConfigError
from zerohop_snapshot.layout import DrainReason

WHOLE = """
endpoints:
  - 10.0.0.1:8000
  - address: "[fd00::1]:8000"
    name: b
    engine: sglang
    models: [llama]
    labels: {zone: eu-1, rack: 7}
    gpus: [GPU-1, GPU-2]
    role: decode
    pool: ns/one
    pools: [ns/two]
    drain: true
    weight: 0.5
    scrape_interval: 200ms
    protocol_version: 1
    metrics: {scheme: https, path: /m, port: 9000}
pools:
  - name: ns/one
    app_protocol: h2c
    engine: vllm
    protocol_version: 1
    objectives: [{name: o, priority: 3}]
  - name: ns/two
"""


def test_everything_that_can_be_said() -> None:
    found = parse(WHOLE, "e.yaml")
    plain, full = found.endpoints
    assert (plain.key, plain.name, plain.pools, plain.draining) == ("10.0.0.1:8000", "10.0.0.1:8000", (), False)
    assert (full.address, full.name, full.engine, full.role) == (Address("fd00::1", 8000), "b", "sglang", "decode")
    assert (full.models, full.gpus, full.pools) == (("llama",), ("GPU-1", "GPU-2"), ("ns/one", "ns/two"))
    assert dict(full.labels) == {"zone": "eu-1", "rack": "7"}
    assert (full.draining, full.drain_reason, full.weight) == (True, DrainReason.CONFIG, 0.5)
    assert (full.metrics_scheme, full.metrics_path, full.metrics_port) == ("https", "/m", 9000)
    assert (full.scrape_interval_ns, full.protocol_version) == (200_000_000, "1")
    assert [(pool.name, pool.app_protocol) for pool in found.pools] == [("ns/one", "h2c"), ("ns/two", "http")]
    assert (found.pools[0].engine, found.pools[0].protocol_version) == ("vllm", "1")
    assert found.pools[0].objectives == ({"name": "o", "priority": 3},)


def test_a_bare_list_and_an_empty_file_are_fine() -> None:
    assert [spec.key for spec in parse("- 10.0.0.1:8000\n- address: 10.0.0.2:8000\n", "e").endpoints] == [
        "10.0.0.1:8000",
        "10.0.0.2:8000",
    ]
    assert parse("", "e") == parse("endpoints:\n", "e") == EndpointSet()


def test_an_endpoint_without_a_pool_belongs_to_the_only_one() -> None:
    assert parse("pools: [{name: p}]\nendpoints: [10.0.0.1:1, {address: '10.0.0.2:1', pool: q}]\n", "e").endpoints[
        0
    ].pools == ("p",)
    assert parse("pools: [{name: p}, {name: q}]\nendpoints: [10.0.0.1:1]\n", "e").endpoints[0].pools == ()


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("endpoints:\n  - address: 10.0.0.1:8000\n    drian: true\n", 3, "did you mean 'drain'"),
        ("endpoints:\n  - name: a\n", 2, "'address' is missing"),
        ("endpoints:\n  - 10.0.0.1\n", 2, "no port"),
        ("endpoints:\n  - 10.0.0.1:8000\n  - address: 10.0.0.1:8000\n", 3, "stands twice"),
        ("endpoints:\n  - address: 10.0.0.1:8000\n    role: both-ends\n", 3, "not one of"),
        ("endpoints:\n  - address: 10.0.0.1:8000\n    scrape_interval: 0\n", 3, "between 1ms and 1h"),
        ("endpoints:\n  - address: 10.0.0.1:8000\n    metrics: {pat: /m}\n", 3, "'pat'"),
        ("endpoints:\n  - address: 10.0.0.1:8000\n    metrics: {path: m}\n", 3, "starts with '/'"),
        ("endpoints:\n  - address: 10.0.0.1:8000\n    drain: 1\n", 3, "true or false"),
        ("endpoints: 10.0.0.1:8000\n", 1, "expected a list"),
        ("endpoint: [10.0.0.1:8000]\n", 1, "did you mean 'endpoints'"),
        ("pools: [{name: a}, {name: a}]\n", 1, "stands twice"),
        ("endpoints: [\n", 2, "not valid YAML"),
        ("just text", 1, "expected a mapping"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "e.yaml")
    assert f"e.yaml:{line}" in str(caught.value)
    assert says in str(caught.value)


async def test_names_become_addresses_and_keep_their_key() -> None:
    (spec,) = (await resolved(parse("- localhost:8000\n", "e"))).endpoints
    assert spec.address == Address("127.0.0.1", 8000)
    assert (spec.key, spec.name) == ("localhost:8000", "localhost:8000")
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid"):
        await resolved(parse("- no-such-host.invalid:8000\n", "e"))


class Followed:
    """`follow` in a task, with what it applied."""

    def __init__(self, path: Path) -> None:
        self.sets: list[EndpointSet] = []
        self.state = EndpointsFileState()
        self.task = asyncio.ensure_future(follow(path, self.sets.append, self.state, interval_s=0.01))

    async def addresses(self, *expected: str) -> None:
        def same() -> bool:
            return bool(self.sets) and tuple(str(spec.address) for spec in self.sets[-1].endpoints) == expected

        await eventually_async(same)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_edits_are_followed_and_a_bad_one_keeps_the_last_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "e.yaml"
    path.write_text("- 10.0.0.1:1\n")
    followed = Followed(path)
    await followed.addresses("10.0.0.1:1")
    path.write_text("- 10.0.0.1:1\n- 10.0.0.2:1\n")
    await followed.addresses("10.0.0.1:1", "10.0.0.2:1")
    path.write_text("- 10.0.0.1:1\n- 10.0.0.2:x\n")
    await eventually_async(lambda: not followed.state.valid)
    assert "e.yaml:2" in followed.state.error
    assert followed.state.refused >= 1
    assert any("the last good one stays" in record.getMessage() for record in caplog.records)
    await followed.addresses("10.0.0.1:1", "10.0.0.2:1")
    # As an editor or a ConfigMap does it: another file takes the name.
    (tmp_path / "new").write_text("- 10.0.0.3:1\n")
    (tmp_path / "new").replace(path)
    await followed.addresses("10.0.0.3:1")
    assert followed.state.valid
    path.unlink()
    await eventually_async(lambda: not followed.state.valid)
    await followed.addresses("10.0.0.3:1")
    path.write_text("- 10.0.0.4:1\n")
    await followed.addresses("10.0.0.4:1")
    # A look between an editor's truncation and its write.
    path.write_text("")
    await eventually_async(lambda: "is empty" in followed.state.error)
    await followed.addresses("10.0.0.4:1")
    path.write_text("[]")
    await followed.addresses()
    await followed.close()


@pytest.mark.parametrize("content", [None, "endpoints: [x]\n", b"\xff\xfe"])
async def test_a_file_that_cannot_be_used_at_the_start_is_an_error(tmp_path: Path, content: str | bytes | None) -> None:
    path = tmp_path / "e.yaml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=r"e\.yaml"):
        await follow(path, lambda _: None, EndpointsFileState())

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerohop_process import units
from zerohop_process.address import Address, Listen
from zerohop_process.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("50ms", 50_000_000),
        ("5s", 5_000_000_000),
        ("1m30s", 90_000_000_000),
        ("1.5s", 1_500_000_000),
        ("250us", 250_000),
        ("2h", 7_200_000_000_000),
        ("0", 0),
        ("0s", 0),
    ],
)
def test_a_duration_is_read_with_its_unit(text: str, expected_ns: int) -> None:
    assert units.duration_ns(text, place="--interval") == expected_ns


@pytest.mark.parametrize("text", ["50", "1.5", "", "ms", "5 s", "-5s", "5sec", "1s2", "s1", "1e3ms", "NaN", "inf"])
def test_what_is_no_duration_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--interval: .*write"):
        units.duration_ns(text, place="--interval")


def test_a_bare_number_is_refused_with_both_readings() -> None:
    with pytest.raises(ConfigError, match="write 50ms or 50s"):
        units.duration_ns("50", place="--interval")


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [("4096", 4096), ("16MiB", 16 * 2**20), ("64kB", 64_000), ("512Ki", 512 * 1024), ("1.5GiB", 3 * 2**29), ("7B", 7)],
)
def test_a_size_is_read_with_its_unit(text: str, expected_bytes: int) -> None:
    assert units.size_bytes(text, place="--limit") == expected_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "16mib", "16 MiBs", "x"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--limit: "):
        units.size_bytes(text, place="--limit")


@given(st.integers(min_value=0, max_value=10**15))
def test_a_duration_survives_being_printed(duration: int) -> None:
    printed = units.duration_text(duration)
    assert units.duration_ns(printed, place="") == pytest.approx(duration, rel=1e-3, abs=1)


def test_argparse_shows_the_reason_behind_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--interval", type=units.duration)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--interval", "50"])
    assert ended.value.code == 2
    assert "argument --interval: '50' is not a duration; write 50ms or 50s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1:8000", "10.0.0.1", 8000),
        ("[::1]:8000", "::1", 8000),
        ("[2001:DB8:0::1]:1", "2001:db8::1", 1),
        ("localhost:0", "localhost", 0),
        ("vllm-0.vllm.default.svc:8000", "vllm-0.vllm.default.svc", 8000),
    ],
)
def test_an_address_comes_back_as_it_was_written(text: str, host: str, port: int) -> None:
    address = Address.parse(text, "--endpoint")
    assert address == Address(host, port)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "8000", "host", "host:", ":8000", "host:70000", "host:-1", "host:８０", "::1:8000", "[::1]", "[x]:1",
     "1.2.3:80", "1.2.3.400:80", "http://h:1", "a b:1", "-h:1", "h/1:80"],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--endpoint: "):
        Address.parse(text, "--endpoint")


def test_a_listener_is_a_path_or_an_address() -> None:
    assert Listen.parse("unix:/run/p.sock") == Listen(path="/run/p.sock")
    assert Listen.parse("unix:///run/p.sock") == Listen(path="/run/p.sock")
    assert Listen.parse("127.0.0.1:9002") == Listen(address=Address("127.0.0.1", 9002))
    assert Listen.parse(":9002") == Listen(address=Address("0.0.0.0", 9002))
    assert str(Listen.parse("unix:/run/p.sock")) == "unix:/run/p.sock"


def test_each_worker_has_its_own_socket() -> None:
    listen = Listen.parse("unix:/run/p.sock")
    assert [listen.of_worker(i).path for i in range(3)] == ["/run/p.sock", "/run/p.sock.1", "/run/p.sock.2"]
    assert Listen.parse("127.0.0.1:1").of_worker(2) == Listen.parse("127.0.0.1:1")


@pytest.mark.parametrize("text", ["unix:", "/run/p.sock", "unix:/" + "x" * 110])
def test_what_is_no_listener_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--listen: "):
        Listen.parse(text, "--listen")

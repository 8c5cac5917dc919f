from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from zerohop_picker import config as settings
from zerohop_picker.config import PickerConfig, PoolListen
from zerohop_process.address import Address, Listen
from zerohop_process.errors import ConfigError


def parsed(*words: str) -> PickerConfig:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    settings.add_arguments(parser)
    return settings.from_arguments(parser.parse_args(words))


EVERYTHING = (
    "--shm-dir=/tmp/z", "--listen=unix:/tmp/a.sock", "--listen=127.0.0.1:9002", "--pool=prod/chat=unix:/tmp/b.sock",
    "--workers=2", "--front=grpcio", "--health-address=:9003", "--metrics-address=127.0.0.1:9090",
    "--config-text=a: 1", "--deadline=20ms", "--response=observe", "--max-request-bytes=1MiB", "--drain-timeout=5s",
    "--secure-serving", "--cert-path=/tmp/c", "--client-ca=/tmp/ca", "--socket-mode=0666", "--socket-group=1337",
    "--health-checking", "--ask-for-body", "--conformance-headers=true", "--log-format=json", "--log-level=debug",
    "--state-dir=/tmp/s", "--models-file=/tmp/m",
)  # fmt: skip


def test_flags_become_values() -> None:
    config = parsed(*EVERYTHING)
    assert config.listen == (Listen(path="/tmp/a.sock"), Listen(address=Address("127.0.0.1", 9002)))
    assert config.pool == (PoolListen("prod/chat", Listen(path="/tmp/b.sock")),)
    assert (config.deadline, config.max_request_bytes, config.socket_mode) == (20_000_000, 2**20, 0o666)
    assert config.health_address in (Address("::", 9003), Address("0.0.0.0", 9003))
    assert config.secure_serving
    assert config.conformance_headers


def test_a_worker_is_started_with_the_same_settings() -> None:
    config = parsed(*EVERYTHING)
    assert parsed(*settings.as_words(config)) == config


def test_every_setting_has_a_flag_and_every_flag_a_setting() -> None:
    assert {option.name for option in settings.OPTIONS} == set(PickerConfig.__dataclass_fields__)


def test_the_file_says_the_same_and_flags_stand_above_it(tmp_path: Path) -> None:
    file = tmp_path / "picker.yaml"
    file.write_text(
        'listen: ["unix:/tmp/a.sock"]\nworkers: 2\ndeadline: 20ms\nsocket-mode: "0666"\nhealth-checking: true\n'
        'pool: ["prod/chat=unix:/tmp/b.sock"]\nresponse: observe\n'
    )
    config = parsed(f"--config={file}", "--workers=3")
    assert (config.workers, config.deadline, config.socket_mode, config.health_checking) == (3, 20_000_000, 0o666, True)
    assert config.pool[0].pool == "prod/chat"


def test_fields_may_be_spelled_with_underscores_and_one_value_needs_no_list(tmp_path: Path) -> None:
    file = tmp_path / "picker.yaml"
    file.write_text("shm_dir: /run/z\nlisten: unix:/tmp/a.sock\nhealth_checking: true\n")
    config = parsed(f"--config={file}")
    assert (config.shm_dir, config.health_checking) == (Path("/run/z"), True)
    assert config.listen == (Listen(path="/tmp/a.sock"),)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--listen is missing"),
        (["--listen=/tmp/a"], "write unix:/tmp/a"),
        (["--listen=unix:/tmp/a", "--listen=unix:/tmp/a"], "given twice"),
        (["--listen=unix:/tmp/a", "--workers=0"], "write 1 to 64"),
        (["--listen=:0", "--workers=2"], "need a fixed port"),
        (["--listen=unix:/tmp/a", "--deadline=50"], "write 50ms or 50s"),
        (["--listen=unix:/tmp/a", "--cert-path=/c"], "need --secure-serving"),
        (["--listen=unix:/tmp/a", "--config-text=a", "--config-file=b"], "exclude each other"),
        (["--pool=chat=unix:/tmp/a"], "NAMESPACE/NAME"),
        (["--listen=unix:/tmp/a", "--socket-mode=rw"], "no file mode"),
        (["--config=/no/such/file"], "no such file"),
    ],
)
def test_mistakes_name_the_place_and_the_fix(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parsed(*words)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("listen: [unix:/tmp/a]\nlisten2: x\n", r"picker.yaml:2: unknown field 'listen2'; did you mean 'listen'"),
        ("listen: /tmp/a\n", r"picker.yaml:1"),
        ("listen: 'unix:/tmp/a'\nsocket_mode: '0660'\nsocket-mode: '0660'\n", r"picker.yaml:3.*the same field"),
        ("listen: ['unix:/tmp/a']\nsocket-mode: 0660\n", "quotes"),
        ("listen: ['unix:/tmp/a']\nfront: nativ\n", "did you mean 'native'"),
        ("listen: ['unix:/tmp/a']\ndeadline: [1]\n", r"picker.yaml:2"),
    ],
)
def test_mistakes_in_the_file_name_file_and_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "picker.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        parsed(f"--config={file}")

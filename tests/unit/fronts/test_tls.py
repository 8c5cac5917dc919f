from __future__ import annotations

from pathlib import Path

import pytest

from zerohop_picker.metrics import Metrics, render
from zerohop_picker.tls import KeyPair, Tls, self_signed
from zerohop_process.errors import ConfigError


def mounted(folder: Path, generation: str, pair: KeyPair) -> None:
    """Write a pair the way kubelet does: a new directory, then one rename of a symlink."""
    target = folder / f"..{generation}"
    target.mkdir()
    (target / "tls.crt").write_bytes(pair.certificate)
    (target / "tls.key").write_bytes(pair.key)
    (folder / "..data_tmp").symlink_to(target.name)
    (folder / "..data_tmp").rename(folder / "..data")
    for name in ("tls.crt", "tls.key"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


def reloads(metrics: Metrics) -> str:
    return "\n".join(line for line in render({"0": metrics.page()}).decode().splitlines() if "tls_reloads" in line)


def test_a_swapped_mount_is_followed(tmp_path: Path) -> None:
    first, second = self_signed(), self_signed()
    mounted(tmp_path, "1", first)
    metrics = Metrics()
    tls = Tls(tmp_path, None, metrics)
    heard: list[KeyPair] = []
    tls.changed(heard.append)
    assert tls.pair == first
    mounted(tmp_path, "2", second)
    tls.look()
    assert tls.pair == second
    assert heard == [second]
    assert 'result="loaded",worker="0"} 1.0' in reloads(metrics)


@pytest.mark.parametrize("broken", ["key of another pair", "no PEM", "empty"])
def test_the_old_pair_stays_while_the_new_one_is_not_whole(tmp_path: Path, broken: str) -> None:
    first, second = self_signed(), self_signed()
    mounted(tmp_path, "1", first)
    metrics = Metrics()
    tls = Tls(tmp_path, None, metrics)
    key = {"key of another pair": first.key, "no PEM": b"junk", "empty": b""}[broken]
    mounted(tmp_path, "2", KeyPair(second.certificate, key))
    tls.look()
    tls.look()
    assert tls.pair == first
    assert 'result="failed",worker="0"} 1.0' in reloads(metrics)
    (tmp_path / "..2" / "tls.key").write_bytes(second.key)
    tls.look()
    assert tls.pair == second


def test_a_first_pair_that_does_not_load_is_a_wrong_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--cert-path: .*tls\.crt: no such file"):
        Tls(tmp_path, None, Metrics())
    mounted(tmp_path, "1", KeyPair(self_signed().certificate, self_signed().key))
    with pytest.raises(ConfigError, match="do not load"):
        Tls(tmp_path, None, Metrics())


def test_a_client_ca_must_be_one(tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_bytes(b"junk")
    with pytest.raises(ConfigError, match="client CA does not load"):
        Tls(None, ca, Metrics())
    ca.write_bytes(self_signed().certificate)
    assert Tls(None, ca, Metrics()).pair.client_ca == ca.read_bytes()

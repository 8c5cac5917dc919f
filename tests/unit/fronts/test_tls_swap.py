"""A key pair or a client CA that is swapped under a listening native front: new connections see the new one."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from pathlib import Path

import pytest

from support.fronts import Served, serving
from support.schedulers import FixedScheduler
from zerohop_picker.protocol import ProtocolCore
from zerohop_picker.tls import KeyPair, self_signed


def put(folder: Path, pair: KeyPair) -> None:
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)


def pem_files(folder: Path, name: str, pair: KeyPair) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    return certificate, key


def client(*, mine: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if mine is not None:
        context.load_cert_chain(*mine)
    return context


def shake_hands(
    served: Served, context: ssl.SSLContext, name: str | None, session: ssl.SSLSession | None = None
) -> tuple[bytes, ssl.SSLSession | None]:
    """Return the fingerprint of the certificate that is shown, once the front has greeted, and the session."""
    assert served.where.address is not None
    where = (served.where.address.host, served.where.address.port)
    with (
        socket.create_connection(where, 20) as plain,
        context.wrap_socket(plain, server_hostname=name, session=session) as secure,
    ):
        secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        if not secure.recv(9):  # in TLS 1.3 a refused client certificate shows here
            raise ssl.SSLError("closed")
        return hashlib.sha256(secure.getpeercert(binary_form=True) or b"").digest(), secure.session


def fingerprint(pair: KeyPair) -> bytes:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pair.certificate.decode())).digest()


@pytest.mark.parametrize("name", [None, "localhost", "some.other.name"])
async def test_the_newest_pair_is_shown_with_any_server_name_or_none(tmp_path: Path, name: str | None) -> None:
    first, second = self_signed(), self_signed()
    put(tmp_path, first)
    core = ProtocolCore(FixedScheduler())
    async with serving("native", core, "127.0.0.1:0", tls=True, folder=tmp_path) as served:
        assert served.tls is not None
        shown, _ = await asyncio.to_thread(shake_hands, served, client(), name)
        assert shown == fingerprint(first)
        put(tmp_path, second)
        served.tls.look()
        shown, _ = await asyncio.to_thread(shake_hands, served, client(), name)
        assert shown == fingerprint(second)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_of_the_old_ca_is_turned_away_after_the_swap(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """Also when it comes back with a session from before."""
    server, old, new = self_signed(), self_signed(), self_signed()
    put(tmp_path, server)
    ca = tmp_path / "ca.crt"
    ca.write_bytes(old.certificate)
    contexts = [client(mine=pem_files(tmp_path, name, pair)) for name, pair in (("old", old), ("new", new))]
    for context in contexts:
        context.maximum_version = version
    core = ProtocolCore(FixedScheduler())
    async with serving("native", core, "127.0.0.1:0", tls=True, folder=tmp_path, client_ca=ca) as served:
        assert served.tls is not None
        _, session = await asyncio.to_thread(shake_hands, served, contexts[0], None)
        with pytest.raises((ssl.SSLError, OSError)):
            await asyncio.to_thread(shake_hands, served, contexts[1], None)
        ca.write_bytes(new.certificate)
        served.tls.look()
        await asyncio.to_thread(shake_hands, served, contexts[1], None)
        # TLS 1.2 resumes by session id, which Python cannot switch off.
        for resumed in (None, session) if version is ssl.TLSVersion.TLSv1_3 else (None,):
            with pytest.raises((ssl.SSLError, OSError)):
                await asyncio.to_thread(shake_hands, served, contexts[0], None, resumed)

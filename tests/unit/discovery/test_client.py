"""Where the API server is and how to be let in: service account over TLS, kubeconfig, and what is wrong with either."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from contextlib import aclosing
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from support.apiserver import ApiServer, pod, pool
from support.waiting import eventually_async
from zerohop_agent.discovery.client import ApiClient, ApiStatus, ApiUnreachable, load_config
from zerohop_agent.discovery.resources import PODS, POOLS_V1, served
from zerohop_process.errors import ConfigError


def certificate(directory: Path) -> ssl.SSLContext:
    """A server's context with a certificate of its own authority, which is left as ca.crt."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (directory / "ca.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (directory / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "ca.crt", directory / "key.pem")
    return context


async def test_service_account_with_a_token_that_rotates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "account"
    account.mkdir()
    async with ApiServer(tls=certificate(account)) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        (account / "namespace").write_text("zerohop-system")
        (account / "token").write_text("first")
        server.token = "first"
        server.install(POOLS_V1)
        client = ApiClient(load_config(None, account))
        async with aclosing(_Closing(client)):
            assert await served(client)
            # The kubelet has put a new token there; the server takes both for a while, then only the new one.
            (account / "token").write_text("second")
            server.token = "second"
            server.requests.clear()
            assert await served(client)
            assert [seen.token for seen in server.requests] == ["second"]
            server.token = "third"
            with pytest.raises(ApiStatus) as refused:
                await served(client)
            assert refused.value.code == 401


async def test_a_certificate_of_another_authority_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account, other = tmp_path / "account", tmp_path / "other"
    account.mkdir()
    other.mkdir()
    certificate(account)
    async with ApiServer(tls=certificate(other)) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        for name in ("namespace", "token"):
            (account / name).write_text("x")
        client = ApiClient(load_config(None, account))
        async with aclosing(_Closing(client)):
            with pytest.raises(ApiUnreachable, match=r"CERTIFICATE_VERIFY_FAILED|certificate"):
                await served(client)
            assert not server.requests


@pytest.mark.parametrize("text", ["", "[]", "clusters: 5", "{", "apiVersion: v1\nclusters: []\ncontexts: []\n"])
def test_a_kubeconfig_that_cannot_be_used_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match="configuration"):
        load_config(path)


def test_no_configuration_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="service account, \\$KUBECONFIG"):
        load_config(None, tmp_path)


async def test_a_stream_of_events_whole_and_in_pieces(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.install(POOLS_V1)
        server.put(pool("llama"))
        server.put(pod("a", annotations={"text": "x" * 300_000}))
        client = ApiClient(load_config(server.kubeconfig(tmp_path)))
        async with aclosing(_Closing(client)):
            params = {"watch": "true", "resourceVersion": "0", "timeoutSeconds": "1"}
            async with client.stream(PODS.path(), params, 5.0) as events:
                kinds = [event["type"] async for event in events]
            assert kinds == ["ADDED"]

            async def cut() -> bool:
                server.cut_watches()
                return True

            with pytest.raises(ApiUnreachable):
                async with client.stream(PODS.path(), params | {"timeoutSeconds": "60"}, 5.0) as events:
                    async for _ in events:
                        await eventually_async(lambda: server.open_watches == 1)
                        await cut()


class _Closing:
    """Gives `aclosing` what it asks for."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def aclose(self) -> None:
        await self._client.close()

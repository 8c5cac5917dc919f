"""TLS for both fronts: a key pair that follows its folder, or one of our own making, and optionally the client's CA."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zerohop_picker.metrics import Metrics
from zerohop_process import log
from zerohop_process.errors import ConfigError, reason
from zerohop_process.follow import stamp_of

_logger = log.get("picker.tls")
CERTIFICATE_FILE, KEY_FILE = "tls.crt", "tls.key"
FOLLOW_S = 1.0
SELF_SIGNED_DAYS = 3_650


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate chain and its key as PEM, and the CA (PEM) that client certificates must come from, if any."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None


def self_signed(client_ca: bytes | None = None) -> KeyPair:
    """Return a new self-signed pair: for gateways that encrypt and do not verify, as they do with such pickers."""
    # 8 MB and 60 ms that plaintext pickers need not pay
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Zerohop"),
            x509.NameAttribute(NameOID.COMMON_NAME, "zerohop-picker"),
        ]
    )
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=SELF_SIGNED_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName("zerohop-picker")]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), pem, client_ca)


def context_of(pair: KeyPair) -> ssl.SSLContext:
    """Return a server context of `pair`: TLS 1.2 or later, ALPN h2.

    Raises: ConfigError when certificate, key or CA do not load, or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2"])
    # OpenSSL reads pairs from files only; memory that looks like files keeps what was checked and what is used one.
    certificate, key = _memory_file(pair.certificate), _memory_file(pair.key)
    try:
        context.load_cert_chain(f"/proc/self/fd/{certificate}", f"/proc/self/fd/{key}", password=_no_password)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"certificate and key do not load: {_said(error)}") from None
    finally:
        os.close(certificate)
        os.close(key)
    if pair.client_ca is not None:
        try:
            context.load_verify_locations(cadata=pair.client_ca.decode())
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ConfigError(f"the client CA does not load: {_said(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
        # A ticket would let a client back in whose CA is gone. (TLS 1.2 can also resume by session id, for which Python
        # has no switch: until its session is two hours old, or the picker is started again.)
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


class Tls:
    """The pair in use. Follows its files, and keeps the old pair while the new one does not load or match.

    Attributes:
        context: what listeners are given once; it hands each new connection to the newest pair.
        pair: the newest good pair.
    """

    def __init__(self, folder: Path | None, client_ca: Path | None, metrics: Metrics) -> None:
        """Load the first pair. Raises: ConfigError, naming the file."""
        self._folder = folder
        self._client_ca = client_ca
        self._reloads = metrics.counters("tls_reloads", "Attempts to load a changed key pair, by result.", "result")
        self._said = log.OncePerChange()
        self._listeners: list[Callable[[KeyPair], None]] = []
        self._stamps = self._look()
        self.pair = self._read()
        try:
            self.context = self._newest = context_of(self.pair)
        except ConfigError as error:
            raise ConfigError(f"--cert-path {folder}: {error}") from None
        self.context.sni_callback = self._use_newest

    def changed(self, listener: Callable[[KeyPair], None]) -> None:
        """Call `listener` with every new pair."""
        self._listeners.append(listener)

    async def follow(self) -> None:
        """Look at the files about once a second until cancelled. A swapped mount shows as new inodes."""
        while self._folder is not None or self._client_ca is not None:
            await asyncio.sleep(FOLLOW_S)
            self.look()

    def look(self) -> None:
        """Take a changed pair now if there is one and it is whole."""
        stamps = self._look()
        if stamps == self._stamps:
            return
        try:
            pair = self._read()
            newest = context_of(pair)
        except ConfigError as error:
            if self._said.log(_logger, "error", "pair", str(error), "keeping the old key pair", reason=str(error)):
                self._reloads.labels("failed").increment()
            return  # and look again: the rest of the pair may not be there yet
        self._stamps = stamps
        if pair == self.pair:
            return
        self.pair, self._newest = pair, newest
        self._said.forget("pair")
        self._reloads.labels("loaded").increment()
        log.event(_logger, "info", "key pair loaded", folder=self._folder)
        for listener in self._listeners:
            listener(pair)

    def _use_newest(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:  # noqa: ARG002
        # OpenSSL asks this for every connection, with or without a server name in its greeting.
        connection.context = self._newest

    def _look(self) -> list[object]:
        return [_stamp(path) for path in self._paths()]

    def _paths(self) -> list[Path]:
        paths = [] if self._folder is None else [self._folder / CERTIFICATE_FILE, self._folder / KEY_FILE]
        return paths if self._client_ca is None else [*paths, self._client_ca]

    def _read(self) -> KeyPair:
        client_ca = None if self._client_ca is None else _read("--client-ca", self._client_ca)
        if self._folder is None:
            if hasattr(self, "pair"):
                return KeyPair(self.pair.certificate, self.pair.key, client_ca)
            return self_signed(client_ca)
        certificate = _read("--cert-path", self._folder / CERTIFICATE_FILE)
        return KeyPair(certificate, _read("--cert-path", self._folder / KEY_FILE), client_ca)


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag}: {reason(error, path)}") from None


def _stamp(path: Path) -> object:
    try:
        return stamp_of(path)
    except OSError as error:
        return error.errno


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("zerohop-tls", os.MFD_CLOEXEC)
    os.write(fd, data)
    return fd


def _no_password() -> str:
    raise ValueError("the key is encrypted; a picker cannot ask for its password")


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error).lower()

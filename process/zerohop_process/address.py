"""Where something listens or is reached: ``10.0.0.1:8000``, ``[::1]:8000``, ``unix:/run/zerohop/picker.sock``."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from zerohop_process.errors import ConfigError
from zerohop_process.units import argument

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
# A Unix socket's name has room for 107 bytes and a zero (sun_path in <sys/un.h>); worker sockets need up to 4 more.
_PATH_LIMIT_BYTES = 107


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A TCP host and port. ``host`` is an IPv4 or IPv6 address without brackets, or a name; ``port`` 0-65535."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, place: str = "address", *, default_host: str | None = None) -> Address:
        """Return the address that ``text`` (``host:port`` or ``[v6]:port``) names.

        ``:8000`` is taken only with a ``default_host``. An IPv6 address comes back in its canonical form.

        Raises: ConfigError, with ``place`` in front.
        """
        host, colon, port = text.strip().rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if bracketed:
            host = host[1:-1]
        elif not host and colon and default_host is not None:
            host = default_host
        if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
            raise ConfigError(f"{place}: {text!r} has no port between 0 and 65535; write HOST:PORT")
        if bracketed or ":" in host:
            return cls(_ipv6(host, text, place, bracketed=bracketed), int(port))
        if re.fullmatch(r"[0-9.]+", host):
            return cls(_ipv4(host, text, place), int(port))
        if not _HOST_NAME.fullmatch(host):
            raise ConfigError(f"{place}: {text!r} has no valid host; write HOST:PORT, with an IPv6 address in brackets")
        return cls(host, int(port))

    @property
    def is_ip(self) -> bool:
        """Whether the host is an address and not a name."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a server listens: exactly one of ``address`` (TCP) and ``path`` (Unix socket) is set."""

    address: Address | None = None
    path: str | None = None

    @classmethod
    def parse(cls, text: str, place: str = "listen") -> Listen:
        """Return the listener that ``unix:PATH`` or ``HOST:PORT`` names. ``:9002`` means every address.

        Raises: ConfigError, with ``place`` in front.
        """
        if not text.startswith("unix:"):
            if text.startswith("/"):
                raise ConfigError(f"{place}: {text!r} looks like a path; write unix:{text}")
            return cls(address=Address.parse(text, place, default_host="0.0.0.0"))
        path = text.removeprefix("unix:")
        if path.startswith("//"):
            path = "/" + path.lstrip("/")
        if not path:
            raise ConfigError(f"{place}: {text!r} names no file; write unix:/run/zerohop/picker.sock")
        if len(path.encode()) > _PATH_LIMIT_BYTES - 4:
            raise ConfigError(
                f"{place}: the path of {text!r} is longer than a Unix socket allows ({_PATH_LIMIT_BYTES - 4} bytes)"
            )
        return cls(path=path)

    def of_worker(self, index: int) -> Listen:
        """Return where worker ``index`` listens: ``PATH``, then ``PATH.1`` and so on; all share a TCP address."""
        if self.path is None or index == 0:
            return self
        return Listen(path=f"{self.path}.{index}")

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path is not None else str(self.address)


def _ipv6(host: str, text: str, place: str, *, bracketed: bool) -> str:
    try:
        canonical = str(ipaddress.IPv6Address(host))
    except ValueError:
        raise ConfigError(f"{place}: {text!r} has no valid IPv6 address") from None
    if not bracketed:
        raise ConfigError(f"{place}: the IPv6 address in {text!r} needs brackets; write [ADDRESS]:PORT")
    return canonical


def _ipv4(host: str, text: str, place: str) -> str:
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        raise ConfigError(f"{place}: {text!r} has no valid IPv4 address") from None


#: argparse types
address = argument(Address.parse)
listen = argument(Listen.parse)

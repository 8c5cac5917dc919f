"""The subset hint: which endpoints a gateway allows for a request, and whether an endpoint is among them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple


class Subset(NamedTuple):
    """Entries of a hint, split by how they match. `exact` are `ip:port` texts, `hosts` bare IPs (any port)."""

    exact: frozenset[str]
    hosts: frozenset[str]

    def allows(self, endpoint: str) -> bool:
        """Whether the `ip:port` text (IPv6 in brackets) is among the entries."""
        return endpoint in self.exact or host_of(endpoint) in self.hosts


def split_list(text: str) -> tuple[str, ...]:
    """The entries of a comma-separated list, blanks and empty entries dropped."""
    return tuple(entry for part in text.split(",") if (entry := part.strip()))


def subset(entries: Iterable[str]) -> Subset:
    """The hint in matching form. An entry that is neither an IP nor `ip:port` matches itself and nothing else."""
    exact, hosts = set(), set()
    for entry in entries:
        host = _bare_ip(entry)
        if host is None:
            exact.add(_normal(entry))
        else:
            hosts.add(host)
    return Subset(frozenset(exact), frozenset(hosts))


def host_of(endpoint: str) -> str:
    """The IP of an `ip:port` text, without brackets."""
    return endpoint.rpartition(":")[0].strip("[]")


def _bare_ip(entry: str) -> str | None:
    try:
        return str(ipaddress.ip_address(entry.strip("[]")))
    except ValueError:
        return None


def _normal(entry: str) -> str:
    """`[0:0::1]:80` as `[::1]:80`; anything else as it is."""
    if not entry.startswith("["):
        return entry
    host, _, port = entry.rpartition(":")
    normal = _bare_ip(host)
    return entry if normal is None else f"[{normal}]:{port}"

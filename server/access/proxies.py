"""Reads what trusted reverse proxies report about a request: the client's address (X-Forwarded-For) and whether the client used
TLS (X-Forwarded-Proto)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Proxies:
    """The trusted proxies, given as addresses or networks. Raises ValueError for a text that is neither an address nor a
    network."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = tuple(_network(text) for text in networks)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, address: str) -> bool:
        parsed = _address(address)
        return parsed is not None and any(parsed in network for network in self._networks)

    def client(self, peer: str, headers: Headers) -> str:
        """The client's address: the last entry of X-Forwarded-For that is not a trusted proxy. Clients can forge only the
        entries before this entry."""
        client = peer
        for given in reversed(",".join(headers.getlist("x-forwarded-for")).split(",")):
            parsed = _address(given.strip())
            if parsed is None:
                break
            client = str(parsed)
            if not self.trusts(client):
                break
        return client


def came_over_tls(headers: Headers) -> bool:
    """True if the nearest proxy received the request over TLS."""
    return ",".join(headers.getlist("x-forwarded-proto")).rpartition(",")[2].strip().lower() == "https"


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if text.startswith("["):
        text = text[1:].partition("]")[0]  # the address has a port
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(
            f"STABLESSM_TRUSTED_PROXIES names {text[:60]!r}; allowed: addresses and networks, such as 10.0.0.7 or 10.0.0.0/24"
        ) from None

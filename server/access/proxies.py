"""Reverse proxies that are believed: whom they speak for (X-Forwarded-For), whether it came over TLS (X-Forwarded-Proto)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Proxies:
    """Proxies by address or network. Raises ValueError for what is neither."""

    def __init__(self, places: Sequence[str]) -> None:
        self._networks = tuple(_network(place) for place in places)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, address: str) -> bool:
        parsed = _address(address)
        return parsed is not None and any(parsed in network for network in self._networks)

    def client(self, peer: str, headers: Headers) -> str:
        """Who asked a trusted proxy: the last of X-Forwarded-For that is not one. What clients write stands before it."""
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
    """What the nearest proxy says of how the request came to it."""
    return ",".join(headers.getlist("x-forwarded-proto")).rpartition(",")[2].strip().lower() == "https"


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if text.startswith("["):
        text = text[1:].partition("]")[0]  # with a port
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed


def _network(place: str) -> Network:
    try:
        return ipaddress.ip_network(place)
    except ValueError:
        raise ValueError(
            f"STABLESSM_TRUSTED_PROXIES names {place[:60]!r}; allowed are addresses and networks, such as 10.0.0.7 or 10.0.0.0/24"
        ) from None

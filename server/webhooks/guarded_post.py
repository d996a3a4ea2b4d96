"""A guarded POST to an address that a user entered. The call must not give the user access to the server's own network.

The URL must be https on port 443 or 8443 with a plain host name and without credentials. The name is resolved once, all its
addresses must be global, and the connection goes to the checked address, with the name in SNI and Host. Redirects are not
followed; the whole call is limited to 5 s and the response to 64 KiB. Hosts in STABLESSM_WEBHOOK_HOSTS may be private, use plain
http and any port.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

PORTS = (443, 8443)
SECONDS = 5.0
ANSWER_BYTES = 65_536
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
GLOBAL_V6 = ipaddress.ip_network("2000::/3")
# networks inside 2000::/3 that lead to an IPv4 address or to no host: Teredo, ORCHID, documentation, 6to4
TUNNELS = [ipaddress.ip_network(n) for n in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")]


class Refused(ValueError):
    """The address must not be called. The message gives the reason."""


class Failed(Exception):
    """The call failed. The message gives the reason without the address."""


@dataclass(frozen=True)
class Target:
    """The parts of a URL whose form has been checked. trusted: the settings of the installation name this host."""

    tls: bool
    host: str
    port: int
    path: str
    trusted: bool


def check_form(url: str, allowed: frozenset[str]) -> Target:
    """Check that the URL may be called, and return its parts. Raises Refused."""
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise Refused("the address has characters that are not allowed in a URL")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise Refused("the address cannot be read") from None
    if parts.scheme not in ("http", "https") or not host:
        raise Refused("the address does not begin with https:// and a name")
    if "@" in parts.netloc:
        raise Refused("the address holds a user or password")
    port = port if port is not None else 443 if parts.scheme == "https" else 80
    trusted = bool({host, f"{host}:{port}"} & allowed)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not trusted:
        if parts.scheme != "https":
            raise Refused("the address is not https")
        if port not in PORTS:
            raise Refused(f"port {port} is not allowed; allowed ports: {', '.join(map(str, PORTS))}")
        if not _is_address(host) and not NAME.fullmatch(host):
            raise Refused("the name in the address is not a host name")
    return Target(parts.scheme == "https", host, port, path, trusted)


def resolve(target: Target) -> tuple[str, int]:
    """The (address, port) to connect to, after checking all addresses of the name. Raises Refused, Failed."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Failed("its name does not resolve") from None
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    if not target.trusted:
        for address in addresses:
            if not is_global(address):
                raise Refused("it is not a public address")
    return addresses[0], target.port


def is_global(text: str) -> bool:
    """True if an address is public and does not embed another address (mapped, NAT64, 6to4, Teredo)."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and not address.is_reserved
    return address.is_global and address in GLOBAL_V6 and not any(address in tunnel for tunnel in TUNNELS)


def post(url: str, body: bytes, headers: dict[str, str], allowed: frozenset[str]) -> int:
    """Send a POST request and return the status of the response. Raises Refused, Failed."""
    target = check_form(url, allowed)
    deadline = time.monotonic() + SECONDS
    address = resolve(target)
    try:
        connection = socket.create_connection(address, timeout=max(0.1, deadline - time.monotonic()))
    except OSError as error:
        raise Failed(f"cannot connect ({_reason(error)})") from None
    if target.tls:
        connection = ssl.create_default_context().wrap_socket(
            connection, server_hostname=target.host, do_handshake_on_connect=False
        )
    # a socket's timeout restarts with every byte; this timer does not
    watch = threading.Timer(max(0.1, deadline - time.monotonic()), _cut, [connection])
    watch.start()
    try:
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
        return _exchange(connection, target, body, headers)
    except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
        late = time.monotonic() >= deadline - 0.05
        raise Failed(f"no answer within {SECONDS:g} s" if late else f"the call failed ({_reason(error)})") from None
    finally:
        watch.cancel()
        connection.close()


def _exchange(connection: socket.socket, target: Target, body: bytes, headers: dict[str, str]) -> int:
    speaker = http.client.HTTPConnection(target.host, target.port)
    speaker.sock = connection  # the checked connection, so the name is not resolved again
    standard = target.port == (443 if target.tls else 80)
    name = f"[{target.host}]" if ":" in target.host else target.host
    speaker.request("POST", target.path, body, {"Host": name if standard else f"{name}:{target.port}", **headers})
    answer = speaker.getresponse()
    if len(answer.read(ANSWER_BYTES + 1)) > ANSWER_BYTES:
        raise Failed(f"its answer is longer than {ANSWER_BYTES:,} bytes")
    return answer.status


def _cut(connection: socket.socket) -> None:
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        pass  # the connection is already closed


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"[:150]
    text = error.strerror if isinstance(error, OSError) else None
    return (text or type(error).__name__)[:150]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

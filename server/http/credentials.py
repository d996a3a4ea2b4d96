"""Identifies the sender of a request by token, session cookie and address. Also lists the hosts that this server accepts."""

from __future__ import annotations

from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from server.access.proxies import Proxies
from server.access.scopes import is_loopback
from server.access.sessions import SESSION_SECONDS, Sessions
from server.access.throttle import FailedTokens, RateLimit
from server.access.token_cache import TokenCache
from server.access.tokens import Principal, digest
from server.errors import TooMany
from server.http.refusals import most_bytes

COOKIE = "stablessm_session"


@dataclass
class ReportLimits:
    """How often, and with how many MiB a minute, programs that share a token may post records."""

    posts: RateLimit
    mib: RateLimit

    def check(self, request: Request, token: str) -> None:
        """Count the request. Raises TooMany."""
        path, length = request.scope["path"], request.headers.get("content-length")
        size = int(length) if length else most_bytes(path) * ("transfer-encoding" in request.headers)
        if wait := self.posts.take(token):
            raise too_many("this token posts too often", wait, f"{self.posts.per_minute} posts a minute")
        if wait := self.mib.take(token, size / 2**20):
            raise too_many("this token posts too many bytes", wait, f"{self.mib.per_minute} MiB a minute")


@dataclass
class Access:
    """The data that the gate needs to check a request. `hosts`: the Host headers that this server accepts."""

    token_cache: TokenCache
    sessions: Sessions
    hosts: frozenset[str]
    new_runs: RateLimit
    reports: ReportLimits
    streams_per_token: int
    failures: FailedTokens
    proxies: Proxies
    user_header: str | None

    async def recognise(self, secret: str, address: str, *, allow_stale: bool = False) -> Principal | None:
        """The principal with this secret; None if the secret is wrong. Raises Unavailable, and TooMany after many failures."""
        sha256 = digest(secret)
        if wait := self.failures.wait(address, sha256):
            raise too_many("too many wrong tokens came from this address", wait, f"{self.failures.per_minute} a minute")
        principal = await self.token_cache.by_secret(secret, allow_stale=allow_stale)
        if principal is None:
            self.failures.failed(address)
        else:
            self.failures.succeeded(address, sha256)
        return principal


def allowed_hosts(host: str, port: int, extra: tuple[str, ...] = ()) -> frozenset[str]:
    """The Host headers that a server bound to (host, port) accepts."""
    names = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(host) else []
    local = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())
    named = {name.strip().lower() for name in extra if name.strip()}
    return frozenset(local | named | {f"{name}:{port}" for name in named if ":" not in name})


def set_session(response: Response, sessions: Sessions, principal: Principal, *, secure: bool = False) -> None:
    """Set the session cookie. `secure`: the browser sends it over TLS only."""
    value = sessions.new_cookie(principal)
    response.set_cookie(COOKIE, value, max_age=SESSION_SECONDS, httponly=True, samesite="strict", path="/", secure=secure)


def session_cookie(headers: Headers) -> str | None:
    """The value of the session cookie; None if there is no such cookie."""
    try:
        given = SimpleCookie(headers.get("cookie") or "").get(COOKIE)
    except CookieError:
        return None
    return given.value if given is not None else None


def bearer_token(headers: Headers) -> str | None:
    """The token in the header Authorization; None if there is no token."""
    scheme, _, token = single_header(headers, "authorization").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def single_header(headers: Headers, name: str) -> str:
    """The value of a header that occurs exactly once; "" if it is missing or sent several times."""
    values = headers.getlist(name)
    return values[0] if len(values) == 1 else ""


def client_address(scope: Scope) -> str:
    """The client's IP address; "" if it is not known."""
    return (scope.get("client") or ("",))[0]


def too_many(message: str, seconds: float, allowed: str) -> TooMany:
    """The error with a Retry-After header of this many seconds."""
    return TooMany(message, allowed=allowed, headers={"Retry-After": str(int(seconds) + 1)})

"""The gate that every request passes first; closed by default.

Order of the checks: Host (421), origin of a write (403), token (401, after ten wrong ones 429), scope (403), size and type of
the body (413, 415), how often (429). Only `/healthz` and the login form answer without a token. The gate also puts the security
headers on every answer, its own included, tells the audit log of every write, ends the streams of a token that has ended, and
turns whatever escapes the handlers into the error body.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.access.audit import Audit
from server.access.proxies import Proxies, came_over_tls
from server.access.scopes import PUBLIC, READ_METHODS, is_loopback, needed_scope
from server.access.sessions import SESSION_SECONDS, Sessions
from server.access.throttle import FailedTokens, RateLimit
from server.access.token_cache import TokenCache
from server.access.tokens import Principal, digest
from server.errors import ServiceError, TooMany
from server.http.bodies import body_refusal, bounded
from server.http.refusals import render_error

log = logging.getLogger("stablessm.server")

COOKIE = "stablessm_session"
STREAM = re.compile(r"/api/runs/[^/]+/stream")
MAX_IDENTITY = 200
NEW_RUNS = re.compile(r"/api/(runs|sweeps|runs/[^/]+/(?:clone|fork)|bulk/clone)")
# Plotly adds one empty style element and fills it through the CSSOM (the first hash is that of the empty string); its map
# library adds one with fixed rules (the second)
CSP = (
    "default-src 'none'; script-src 'self'; style-src-elem 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=' "
    "'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='; "
    "style-src-attr 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass
class Access:
    """What the gate's checks need: `hosts` are the exact Host headers that are served."""

    token_cache: TokenCache
    sessions: Sessions
    hosts: frozenset[str]
    new_runs: RateLimit
    streams_per_token: int
    failures: FailedTokens
    proxies: Proxies
    user_header: str | None

    async def recognise(self, secret: str, address: str, *, though_stale: bool = False) -> Principal | None:
        """Whose secret this is. Raises TooMany after too many wrong ones from this address, Unavailable."""
        sha256 = digest(secret)
        if wait := self.failures.wait(address, sha256):
            raise _later("too many wrong tokens came from this address", wait, f"{self.failures.per_minute} a minute")
        principal = await self.token_cache.by_secret(secret, though_stale=though_stale)
        if principal is None:
            self.failures.failed(address)
        else:
            self.failures.succeeded(address, sha256)
        return principal


def allowed_hosts(host: str, port: int, extra: tuple[str, ...] = ()) -> frozenset[str]:
    """Host headers a server bound to (host, port) answers to."""
    names = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(host) else []
    local = {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())
    named = {name.strip().lower() for name in extra if name.strip()}
    return frozenset(local | named | {f"{name}:{port}" for name in named if ":" not in name})


def set_session(response: Response, sessions: Sessions, principal: Principal, *, secure: bool = False) -> None:
    """The cookie by which a browser is recognised from now on; `secure` when it came over TLS."""
    value = sessions.new_cookie(principal)
    response.set_cookie(COOKIE, value, max_age=SESSION_SECONDS, httponly=True, samesite="strict", path="/", secure=secure)


def policy_with_inline(html: str) -> str:
    """The content policy of a page that carries its own style element (the login page, before static files are allowed)."""
    hashes = []
    for part in html.split("<style>")[1:]:
        digest_of_style = hashlib.sha256(part.split("</style>")[0].encode()).digest()
        hashes.append(f"'sha256-{base64.b64encode(digest_of_style).decode()}'")
    return CSP.replace("style-src-elem 'self'", " ".join(["style-src-elem 'self'", *hashes]))


def client_address(scope: Scope) -> str:
    return (scope.get("client") or ("",))[0]


class Gate:
    """The outermost ASGI layer."""

    def __init__(self, app: ASGIApp, access: Access, audit: Audit) -> None:
        self.app, self.access, self.audit = app, access, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = finished = False
        state: dict[str, Any] = scope.setdefault("state", {})

        async def guarded_send(message: Message) -> None:
            nonlocal started, finished
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if scope["method"] not in READ_METHODS or state.get("entered"):
                    self.audit.note(scope, client_address(scope), state.get("principal"), message["status"], headers)
            else:
                finished = not message.get("more_body", False)
            await send(message)

        self._hear_proxy(scope, state)
        refusal = await self._refusal(scope, state)
        if refusal is not None:
            await refusal(scope, receive, guarded_send)
            return
        try:
            with self._stream(scope, state) as ended:
                await self.app(scope, _until(ended, bounded(scope, receive)), guarded_send)
            if ended is not None and ended.is_set() and started and not finished:
                await send({"type": "http.response.body", "body": b""})
        except ServiceError as error:
            answer = _refused(Request(scope), error)
            await answer(scope, receive, guarded_send)
        except Exception:
            if started:
                raise
            log.exception("unexpected error in %s %s", scope["method"], scope["path"])
            answer = render_error(Request(scope), 500, "something went wrong here; the server's log says what")
            await answer(scope, receive, guarded_send)

    def _hear_proxy(self, scope: Scope, state: dict[str, Any]) -> None:
        """From here on a request that a trusted proxy passed on has its client's address, and its scheme."""
        proxies, peer = self.access.proxies, client_address(scope)
        if proxies.trusts(peer):
            headers = Headers(scope=scope)
            state["proxied"] = True
            scope["client"] = (proxies.client(peer, headers), 0)
            scope["scheme"] = "https" if came_over_tls(headers) else "http"

    @contextmanager
    def _stream(self, scope: Scope, state: dict[str, Any]) -> Iterator[asyncio.Event | None]:
        """For live streams of created tokens and of sessions: counts them, and says when they have ended. Raises TooMany."""
        principal: Principal | None = state.get("principal")
        cookie: str | None = state.get("cookie")
        if principal is None or (principal.token_id is None and cookie is None) or not STREAM.fullmatch(scope["path"]):
            yield None
            return
        most = self.access.streams_per_token
        if principal.token_id is not None and self.access.sessions.open_streams(principal) >= most:
            raise _later(f"{most} live streams of this token are open", 5, f"at most {most}")
        with self.access.sessions.stream(principal, cookie) as ended:
            yield ended

    async def _refusal(self, scope: Scope, state: dict[str, Any]) -> Response | None:
        """The answer of the first check that the request fails; None lets it in."""
        request = Request(scope)
        if (refused := self._check_host(request) or _check_origin(request)) is not None:
            return refused
        if scope["path"] in PUBLIC:
            return body_refusal(request)
        try:
            return (
                await self._enter(request, state)
                or await self._check_token(request, state)
                or _check_cookie(request, state)
                or _check_scope(request, state["principal"])
                or body_refusal(request)
                or self._check_rate(request, state["principal"])
            )
        except ServiceError as error:
            return _refused(request, error)

    def _check_host(self, request: Request) -> Response | None:
        if _host(request) in self.access.hosts:
            return None
        return render_error(
            request, 421, "this Host is not served here (see STABLESSM_HOSTS)", field="Host",
            allowed=", ".join(sorted(self.access.hosts)) if is_loopback(client_address(request.scope)) else None,
        )  # fmt: skip

    async def _check_token(self, request: Request, state: dict[str, Any]) -> Response | None:
        """Finds out who asks, and by which cookie if nothing else says so. Raises TooMany, Unavailable."""
        access, cookie = self.access, None
        if not access.token_cache.asks:
            principal: Principal | None = access.token_cache.owner
        elif (bearer := _bearer(request.headers)) is not None:
            watches = request.scope["path"] == "/metrics"  # shows above all what is wrong while the database is away
            principal = await access.recognise(bearer, client_address(request.scope), though_stale=watches)
        else:
            cookie = session_cookie(request.headers)
            principal = await access.sessions.by_cookie(cookie) if cookie else None
        if principal is not None and principal.names_users:
            principal = await self._for_user(request, principal, proxied=state.get("proxied", False))
        if principal is None:
            return _unauthorized(request)
        state |= {"principal": principal, "cookie": cookie}
        return None

    async def _for_user(self, request: Request, principal: Principal, *, proxied: bool) -> Principal | None:
        """Whom a proxy's token stands for in this request; None where it is not a trusted proxy's to say, or it names nobody."""
        header = self.access.user_header
        identity = _single(request.headers, header).strip() if header else ""
        if not proxied or not identity or len(identity) > MAX_IDENTITY or not identity.isprintable():
            return None
        return await self.access.token_cache.for_user(principal, identity)

    def _check_rate(self, request: Request, principal: Principal) -> Response | None:
        """Raises TooMany when this token submits too often."""
        new_runs = self.access.new_runs
        submits = request.method == "POST" and NEW_RUNS.fullmatch(request.scope["path"]) is not None
        if submits and (wait := new_runs.take(f"{principal.token_id}/{principal.user_id}")):
            raise _later("too many submissions", wait, f"{new_runs.per_minute} a minute; a sweep is one")
        return None

    async def _enter(self, request: Request, state: dict[str, Any]) -> Response | None:
        """The answer to the address that `stablessm up` prints: a cookie, and the token leaves address bar and history at once.

        Only the settings' token may come like this. A created one goes to others, and a link with it would lie about for ever.
        """
        scope, access = request.scope, self.access
        query = dict(parse_qsl(scope["query_string"].decode("latin1")))
        if _is_write(request) or not access.token_cache.asks or "token" not in query:
            return None
        principal = await access.recognise(query["token"], client_address(scope))
        if principal is None or principal.token_id is not None:
            return None
        state |= {"principal": principal, "entered": True}
        rest = urlencode([(k, v) for k, v in query.items() if k != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # "//host" would lead away from here
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        set_session(answer, access.sessions, principal, secure=scope["scheme"] == "https")
        return answer


def _check_origin(request: Request) -> Response | None:
    if not _is_write(request):
        return None
    host, origin, site = _host(request), request.headers.get("origin"), request.headers.get("sec-fetch-site")
    # a form of ours says "null", since our pages tell nobody where they are; only a browser can say same-origin
    foreign = origin is not None and _host_of(origin) != host and (origin, site) != ("null", "same-origin")
    if foreign or site not in (None, "same-origin", "none"):
        return render_error(request, 403, "writes from another origin are refused", field="Origin", allowed=f"http(s)://{host}")
    return None


def _check_cookie(request: Request, state: dict[str, Any]) -> Response | None:
    """A browser names the origin of each write; one with a cookie or a proxy's word but without it is no page's of ours."""
    if (
        (state["cookie"] or state["principal"].named)
        and _is_write(request)
        and not {"origin", "sec-fetch-site"} & set(request.headers)
    ):
        return render_error(
            request, 403, "a cookie alone is not enough for a write", field="Origin", allowed=f"http://{_host(request)}"
        )
    return None


def _check_scope(request: Request, principal: Principal) -> Response | None:
    needed = needed_scope(request.method, request.scope["path"])
    if principal.may(needed):
        return None
    message = f"this needs a token of the scope {needed}; this one's is {principal.scope}"
    return render_error(request, 403, message, field="scope", allowed=needed)


def _is_write(request: Request) -> bool:
    return request.method not in READ_METHODS


def _host(request: Request) -> str:
    return _single(request.headers, "host").lower()


def _until(ended: asyncio.Event | None, receive: Receive) -> Receive:
    """`receive` that reports a disconnect as soon as `ended` is set, which is what a streaming handler waits for."""
    if ended is None:
        return receive

    async def receive_or_end() -> Message:
        message, end = asyncio.ensure_future(receive()), asyncio.ensure_future(ended.wait())
        try:
            await asyncio.wait([message, end], return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"} if ended.is_set() else message.result()
        finally:
            message.cancel()
            end.cancel()

    return receive_or_end


def _later(message: str, seconds: float, allowed: str) -> TooMany:
    return TooMany(message, allowed=allowed, headers={"Retry-After": str(int(seconds) + 1)})


def _refused(request: Request, error: ServiceError) -> Response:
    return render_error(request, error.status, error.message, field=error.field, allowed=error.allowed, headers=error.headers)


def _unauthorized(request: Request) -> Response:
    return render_error(
        request, 401, "a token is needed", field="Authorization", allowed="Bearer <token>",
        headers={"WWW-Authenticate": "Bearer"},
    )  # fmt: skip


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # "http://[" for one
        return ""


def _single(headers: Headers, name: str) -> str:
    values = headers.getlist(name)
    return values[0] if len(values) == 1 else ""


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = _single(headers, "authorization").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def session_cookie(headers: Headers) -> str | None:
    try:
        given = SimpleCookie(headers.get("cookie") or "").get(COOKIE)
    except CookieError:
        return None
    return given.value if given is not None else None

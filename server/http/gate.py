"""The gate that every request passes first. The gate refuses requests by default.

The checks run in this order: Host (421), origin of a write (403), token (401; 429 after ten wrong tokens), scope (403), size
and type of the body (413, 415), rate (429). Only `/healthz` and the login form need no token. The gate also adds the security
headers to every response, reports every write to the audit log, ends the live streams of a revoked or expired token, and turns
uncaught exceptions into error responses.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.access.audit import Audit
from server.access.proxies import came_over_tls
from server.access.scopes import PUBLIC, READ_METHODS, is_loopback, needed_scope
from server.access.tokens import Principal
from server.errors import ServiceError
from server.http.bodies import body_refusal, limit_body
from server.http.content_policy import HEADERS
from server.http.credentials import Access, bearer_token, client_address, session_cookie, set_session, single_header, too_many
from server.http.refusals import RECORDS, render_error, render_service_error

log = logging.getLogger("stablessm.server")

STREAM = re.compile(r"/api/runs/[^/]+/stream")
MAX_IDENTITY = 200
NEW_RUNS = re.compile(r"/new|/api/(runs|sweeps|runs/[^/]+/(?:clone|fork)|bulk/clone|ingest/runs)")


class Gate:
    """The ASGI middleware around the application."""

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
                if (scope["method"] not in READ_METHODS or state.get("entered")) and not _is_report(scope, message["status"]):
                    self.audit.note(scope, client_address(scope), state.get("principal"), message["status"], headers)
            else:
                finished = not message.get("more_body", False)
            await send(message)

        self._apply_proxy(scope, state)
        refusal = await self._refusal(scope, state)
        if refusal is not None:
            await refusal(scope, receive, guarded_send)
            return
        try:
            with self._stream(scope, state) as ended:
                await self.app(scope, _until(ended, limit_body(scope, receive)), guarded_send)
            if ended is not None and ended.is_set() and started and not finished:
                await send({"type": "http.response.body", "body": b""})
        except ServiceError as error:
            answer = render_service_error(Request(scope), error)
            await answer(scope, receive, guarded_send)
        except ClientDisconnect:
            return  # nobody waits for an answer
        except Exception:
            if started:
                raise
            log.exception("unexpected error in %s %s", scope["method"], scope["path"])
            answer = render_error(Request(scope), 500, "an unexpected error occurred; see the server's log")
            await answer(scope, receive, guarded_send)

    def _apply_proxy(self, scope: Scope, state: dict[str, Any]) -> None:
        """Give a request from a trusted proxy the address and the scheme of the proxy's client."""
        proxies, peer = self.access.proxies, client_address(scope)
        if proxies.trusts(peer):
            headers = Headers(scope=scope)
            state["proxied"] = True
            scope["client"] = (proxies.client(peer, headers), 0)
            scope["scheme"] = "https" if came_over_tls(headers) else "http"

    @contextmanager
    def _stream(self, scope: Scope, state: dict[str, Any]) -> Iterator[asyncio.Event | None]:
        """For a live stream with a created token or a session, yields an event that is set when the token or session ends;
        otherwise yields None. Raises TooMany."""
        principal: Principal | None = state.get("principal")
        cookie: str | None = state.get("cookie")
        if principal is None or (principal.token_id is None and cookie is None) or not STREAM.fullmatch(scope["path"]):
            yield None
            return
        most = self.access.streams_per_token
        if principal.token_id is not None and self.access.sessions.open_streams(principal) >= most:
            raise too_many(f"this token already has {most} live streams open", 5, f"at most {most}")
        with self.access.sessions.stream(principal, cookie) as ended:
            yield ended

    async def _refusal(self, scope: Scope, state: dict[str, Any]) -> Response | None:
        """The response of the first check that the request fails; None if it passes all checks."""
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
            return render_service_error(request, error)

    def _check_host(self, request: Request) -> Response | None:
        if _host(request) in self.access.hosts:
            return None
        return render_error(
            request, 421, "this Host is not served here (see STABLESSM_HOSTS)", field="Host",
            allowed=", ".join(sorted(self.access.hosts)) if is_loopback(client_address(request.scope)) else None,
        )  # fmt: skip

    async def _check_token(self, request: Request, state: dict[str, Any]) -> Response | None:
        """Find the principal by token or cookie and store it in `state`. Raises TooMany, Unavailable."""
        access, cookie = self.access, None
        if not access.token_cache.asks:
            principal: Principal | None = access.token_cache.owner
        elif (bearer := bearer_token(request.headers)) is not None:
            watches = request.scope["path"] == "/metrics"  # monitoring must work while the database is unavailable
            principal = await access.recognise(bearer, client_address(request.scope), allow_stale=watches)
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
        """The user that a trusted proxy names; None if the proxy is not trusted or names no user."""
        header = self.access.user_header
        identity = single_header(request.headers, header).strip() if header else ""
        if not proxied or not identity or len(identity) > MAX_IDENTITY or not identity.isprintable():
            return None
        return await self.access.token_cache.for_user(principal, identity)

    def _check_rate(self, request: Request, principal: Principal) -> Response | None:
        """Raises TooMany if this token submits too often."""
        new_runs = self.access.new_runs
        submits = request.method == "POST" and NEW_RUNS.fullmatch(request.scope["path"]) is not None
        if submits and (wait := new_runs.take(f"{principal.token_id}/{principal.user_id}")):
            raise too_many("too many submissions", wait, f"{new_runs.per_minute} per minute; a sweep counts as one")
        if RECORDS.fullmatch(request.scope["path"]):
            self.access.reports.check(request, str(principal.token_id))
        return None

    async def _enter(self, request: Request, state: dict[str, Any]) -> Response | None:
        """The response to a request for the address that `stablessm up` prints: a session cookie, and a redirect that removes
        the token from the address bar and the history. None for other requests.

        Only the token from the settings may be sent in an address. Created tokens belong to other people and would remain in
        the links that these people share.
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
        path = "/" + scope["path"].lstrip("/\\")  # "//host" would redirect to another server
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        set_session(answer, access.sessions, principal, secure=scope["scheme"] == "https")
        return answer


def _check_origin(request: Request) -> Response | None:
    if not _is_write(request):
        return None
    host, origin, site = _host(request), request.headers.get("origin"), request.headers.get("sec-fetch-site")
    # forms on the service's pages send the origin "null" because of their referrer policy; their Sec-Fetch-Site header is
    # same-origin, which other sites cannot forge
    foreign = origin is not None and _host_of(origin) != host and (origin, site) != ("null", "same-origin")
    if foreign or site not in (None, "same-origin", "none"):
        return render_error(request, 403, "writes from another origin are refused", field="Origin", allowed=f"http(s)://{host}")
    return None


def _check_cookie(request: Request, state: dict[str, Any]) -> Response | None:
    """Refuse a write by cookie or proxy that has no origin, because a browser always sends the origin of a write."""
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
    message = f"this needs a token of the scope {needed}; this token has the scope {principal.scope}"
    return render_error(request, 403, message, field="scope", allowed=needed)


def _is_report(scope: Scope, status: int) -> bool:
    """True for a post of records that need not appear in the audit log: a run posts every second, and opening the run left a row.
    Posts with a wrong token or to another token's run do appear."""
    return status not in (401, 403) and RECORDS.fullmatch(scope["path"]) is not None


def _is_write(request: Request) -> bool:
    return request.method not in READ_METHODS


def _host(request: Request) -> str:
    return single_header(request.headers, "host").lower()


def _until(ended: asyncio.Event | None, receive: Receive) -> Receive:
    """A `receive` function that also reports a disconnect when `ended` is set, so that a streaming handler stops."""
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


def _unauthorized(request: Request) -> Response:
    return render_error(
        request, 401, "a token is needed", field="Authorization", allowed="Bearer <token>",
        headers={"WWW-Authenticate": "Bearer"},
    )  # fmt: skip


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # for example "http://["
        return ""

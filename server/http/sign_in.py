"""The login form, signing in and signing out."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from server.errors import TooMany
from server.http.credentials import COOKIE, Access, client_address, session_cookie, set_session
from server.http.page_templates import pages_of

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

MAX_FORM_BYTES = 4096


@router.get("/login")
def login_form(request: Request, next: str = "/") -> Response:
    return pages_of(request).login(_local(next), error=None)


@router.post("/login")
async def login(request: Request) -> Response:
    """Sign in with the token from the form. The access check accepts this request without a token."""
    body = (await request.body())[:MAX_FORM_BYTES].decode("utf-8", "replace")
    form = {key: values[0] for key, values in parse_qs(body).items()}
    access, target = request.app.state.access, _local(form.get("next", "/"))
    assert isinstance(access, Access)
    try:
        principal = await access.recognise(form.get("token", "").strip(), client_address(request.scope))
    except TooMany as error:
        answer: Response = pages_of(request).login(target, error=f"{error.message}; try again in a minute", status=429)
        answer.headers.update(error.headers or {})
        return answer
    if principal is None:
        return pages_of(request).login(target, error="That is not a token of this server.", status=401)
    request.state.principal = principal  # the audit log records who signed in
    answer = RedirectResponse(target, 303)
    # the server itself never sees TLS; a trusted proxy and a browser's Origin header report it
    secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
    set_session(answer, access.sessions, principal, secure=secure)
    return answer


@router.post("/logout")
async def logout(request: Request) -> Response:
    """End this browser's session. Every copy of its cookie becomes invalid. The token stays valid until it is revoked."""
    access, cookie = request.app.state.access, session_cookie(request.headers)
    if cookie is not None and access.token_cache.asks:
        await access.sessions.end(cookie)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


def _local(path: str) -> str:
    """The path if it leads to this server, else "/". A browser reads a backslash as a slash."""
    return (
        path if path.startswith("/") and not path.startswith(("//", "/\\")) and "\\" not in path and path.isprintable() else "/"
    )

"""Error responses: the error body as JSON, or as a page for a browser."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import InterfaceError, OperationalError, TimeoutError
from starlette.exceptions import HTTPException

from server.errors import Invalid, ServiceError, error_json
from stablessm_core.report.frames import LIMITS
from stablessm_core.spec.errors import ConfigError, describe_items

log = logging.getLogger("stablessm.server")

MAX_BODY_BYTES = 1 << 20
RECORDS = re.compile(r"/api/ingest/runs/[^/]+/(records|compare)")  # paths whose bodies are frames, not JSON
MACHINE_PATHS = ("/api", "/static", "/openapi.json", "/healthz", "/readyz", "/metrics")


def most_bytes(path: str) -> int:
    """The largest body that a request to this path may have, in bytes; archives are larger still (server.http.bodies)."""
    return LIMITS.body_bytes if RECORDS.fullmatch(path) else MAX_BODY_BYTES


def wants_page(path: str, accept: str) -> bool:
    """True if the response should be HTML: the path is a page, and the client accepts HTML."""
    machine = any(path == p or path.startswith(p + "/") for p in MACHINE_PATHS)
    return not machine and "text/html" in accept


def render_error(
    request: Request,
    status: int,
    message: str,
    *,
    field: str | None = None,
    allowed: str | None = None,
    headers: Mapping[str, str] | None = None,
    code: str | None = None,
) -> Response:
    """The error response: HTML if a browser requested a page, else JSON."""
    body = error_json(status, message, field, allowed, code)
    pages = getattr(request.app.state, "pages", None)
    if pages is not None and wants_page(request.url.path, request.headers.get("accept", "")):
        return pages.error(request, status, body["error"], dict(headers or {}))  # type: ignore[no-any-return]
    return JSONResponse(body, status, dict(headers or {}))


def render_service_error(request: Request, error: ServiceError) -> Response:
    """The response to a request that was refused with this error."""
    return render_error(
        request, error.status, error.message, field=error.field, allowed=error.allowed, headers=error.headers, code=error.code
    )


def problems_error(problems: Sequence[tuple[str, str, str | None]]) -> Invalid:
    """One error for a list of problems (field, message, allowed). The error contains the first problem in full, but only the
    fields of the other problems."""
    field, message, allowed = problems[0]
    text = f"{field}: {message}" if field else message
    others = [name for name, _, _ in problems[1:] if name and name != field]
    if others:
        text += f" (also refused: {', '.join(dict.fromkeys(others[:10]))})"
    return Invalid(text[:2000], field=field[:200] or None, allowed=allowed)


def install_handlers(app: FastAPI) -> None:
    """Give the errors of the framework, of validation and of the database a body of the same form. Unlike the framework's own
    error bodies, this body does not contain the invalid input as JSON."""

    async def service(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServiceError)
        return render_service_error(request, error)

    async def config(request: Request, error: Exception) -> Response:
        assert isinstance(error, ConfigError)
        return await service(request, problems_error(error.problems))

    async def validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await service(request, problems_error(describe_items(_inside(error.errors()), _body_model(request))))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status, headers = error.status_code, dict(error.headers or {})
        message, field, allowed = str(error.detail), None, None
        if status == 405:
            message, field = f"{request.method} is not possible on {request.url.path}", "method"
            allowed = ", ".join(_methods(request)) or None
            headers["Allow"] = allowed or ""
        elif status == 404 and error.detail == "Not Found":
            message = f"there is nothing at {request.url.path[:200]}"
        elif status == 413:
            message, field = "the request body is too large", "body"
            allowed = f"at most {most_bytes(request.url.path):,} bytes"
        elif status == 400:
            message = "the request body cannot be read"
        return render_error(request, status, message, field=field, allowed=allowed, headers=headers)

    async def database(request: Request, error: Exception) -> Response:
        request.app.state.metrics.requests.database_errors.inc()
        log.error("the database did not answer %s %s: %s", request.method, request.url.path, str(error).partition("\n")[0])
        return render_error(request, 503, "the database does not answer; try again", headers={"Retry-After": "2"})

    app.add_exception_handler(ServiceError, service)
    app.add_exception_handler(ConfigError, config)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
    for kind in (OperationalError, InterfaceError, TimeoutError):
        app.add_exception_handler(kind, database)


def _body_model(request: Request) -> Any:
    body = getattr(request.scope.get("route"), "body_field", None)
    return body.field_info.annotation if body is not None else None


def _inside(items: Sequence[Any]) -> list[dict[str, Any]]:
    # FastAPI puts the source of the value (body, query, path, header) in front of the path; users know only the field's name
    inside = []
    for item in items:
        where, *path = item["loc"]
        if item["type"] == "json_invalid":
            item = {
                **item,
                "msg": f"the body is not JSON: {item.get('ctx', {}).get('error', '')}"[:200],
                "ctx": {},
                "input": None,
            }
            path = ["body"]
        elif not path and "field" not in item.get("ctx", {}):
            path = [where]
        inside.append({**item, "loc": tuple(path)})
    return inside


def _methods(request: Request) -> list[str]:
    # the framework's own Allow header lists only the methods of the first route of the path
    methods: set[str] = set()
    for route in request.app.state.routes:
        if route.path_regex.match(request.url.path):
            methods |= route.methods
    return sorted(methods)

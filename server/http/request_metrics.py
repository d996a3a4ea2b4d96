"""Measures the time until the response to each request starts, by route and status. Logs a line for every write."""

from __future__ import annotations

import logging
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = frozenset(("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"))
READS = frozenset(("GET", "HEAD", "OPTIONS"))
POSTS = "/api/ingest/runs/{run_id}/records"  # a program posts every second, so only refused posts are logged
LATENCY_BUCKETS = (0.01, 0.05, 0.25, 1.0, 5.0)

log = logging.getLogger("stablessm.request")


class RequestMetrics:
    """Metrics of the requests of this process. The number of label values is limited, because the labels are route templates,
    known methods and status classes.

    Counts and sums are kept per route, but histograms only per kind of route, because histograms per route would fill most of
    /metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "stablessm_http_request_seconds", "Time from a request's arrival to the start of its response.",
            ["kind"], buckets=LATENCY_BUCKETS, registry=registry,
        )  # fmt: skip
        self.requests = Counter("stablessm_http_requests", "Requests answered.", ["method", "route", "status"], registry=registry)
        self.route_seconds = Counter(
            "stablessm_http_route_seconds",
            "Sum of the times from a request's arrival to the start of its response, by route.",
            ["route"],
            registry=registry,
        )
        self.database_errors = Counter(
            "stablessm_database_errors", "Requests that the database did not answer.", registry=registry
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        first = route.strip("/").partition("/")[0]
        kind = first if first in ("api", "static") else "page" if route.startswith("/") else route
        self.seconds.labels(kind).observe(seconds)
        self.requests.labels(method, route, f"{status // 100}xx").inc()
        self.route_seconds.labels(route).inc(seconds)


class RequestTimer:
    """The outermost ASGI middleware. Requests that the gate refuses are counted under the route "refused"."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics) -> None:
        self.app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._answered(scope, message, time.perf_counter() - begun)
            await send(message)

        await self.app(scope, receive, timed)

    def _answered(self, scope: Scope, message: Message, seconds: float) -> None:
        route = scope.get("route")
        method = scope["method"] if scope["method"] in METHODS else "other"
        template: str = getattr(route, "path", "none" if message["status"] == 404 else "refused")
        self._metrics.answered(method, template, message["status"], seconds)
        if method not in READS and not (template == POSTS and message["status"] == 200):
            extra: dict[str, Any] = {
                "method": method,
                "route": template,
                "status": message["status"],
                "seconds": round(seconds, 4),
            }
            extra |= _who(scope)
            if (run := _run_of(scope, message)) is not None:
                extra["run"] = run
                if (attempt := scope.get("state", {}).get("attempt")) is not None:
                    extra["attempt"] = attempt
            log.info("write", extra=extra)


def _who(scope: Scope) -> dict[str, Any]:
    """The token, user and address of the request. The token from the settings has no id."""
    principal = scope.get("state", {}).get("principal")
    known = {"token": principal.name, "token_id": principal.token_id, "user": principal.user} if principal is not None else {}
    return {"address": (scope.get("client") or ("",))[0]} | {
        key: value for key, value in known.items() if value not in (None, "")
    }


def _run_of(scope: Scope, message: Message) -> int | None:
    """The run in the path, or the new run in the Location header."""
    given = scope.get("path_params", {}).get("run_id")
    if given is None:
        location = next((value for name, value in message.get("headers", ()) if name.lower() == b"location"), b"")
        given = location.rpartition(b"/")[2].decode("latin1") if b"/runs/" in location else None
    return int(given) if given is not None and str(given).isdecimal() else None

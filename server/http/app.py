"""The web application: its parts, its routes, and the gate in front of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute

from server.access.audit import Audit
from server.access.proxies import Proxies
from server.access.scopes import check_bind, load_or_create_token
from server.access.sessions import Sessions
from server.access.throttle import FailedTokens, RateLimit
from server.access.token_cache import TokenCache
from server.database.connection import Database
from server.database.watchdog import guard
from server.http import assets, new_run, pages, run_list, sign_in
from server.http.api import (
    alerts,
    audit,
    autopsy,
    bulk,
    claims,
    compare,
    differences,
    exports,
    figures,
    forks,
    free_metrics,
    history,
    ingest,
    lists,
    memory,
    overview,
    paper,
    paper_table,
    queues,
    runs,
    series,
    service,
    silences,
    steps,
    stream,
    sweeps,
    systems,
    theory,
    tokens,
    trash,
    users,
    verdict,
    webhooks,
)
from server.http.api.deps import refuse_unknown_parameters
from server.http.api.verdict import OpenVerdicts
from server.http.credentials import Access, ReportLimits, allowed_hosts
from server.http.gate import Gate
from server.http.metrics import Metrics
from server.http.page_templates import Pages
from server.http.refusals import install_handlers
from server.http.request_metrics import RequestTimer
from server.http.schemas.runs import ErrorAnswer
from server.ingest.reports import Reports
from server.keep.housekeeping import Housekeeping
from server.lifecycle.event_wakeups import publisher
from server.lifecycle.lost_runs import LostRunReaper
from server.lifecycle.searches import SearchRounds
from server.live.broadcaster import Broadcaster
from server.live.listener import ChangeListener
from server.search.sparks import SparkCache
from server.settings import Settings
from server.webhooks.delivery import WebhookDelivery
from server.webhooks.groups import Waits
from server.webhooks.transport import smtp_of
from stablessm_core import __version__

SILENCE_SECONDS = 60.0  # maximum wait for an answer of the database, in seconds; the longest statement may take 30 s
DESCRIPTION = """Train state-space models and watch every eigenvalue live: which ones cross the boundary, and which runs diverge.

Every request needs `Authorization: Bearer <token>`. The token is in the address that `stablessm up` prints. Every error response
has the body `{"error": {"code", "message", "field"?, "allowed"?}}`. Non-finite numbers are the strings `"NaN"`, `"Infinity"` and
`"-Infinity"`. Times are UTC epoch seconds.
"""
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": meaning}
    for status, meaning in {
        400: "The request cannot be read.",
        401: "No valid token.",
        403: "A write from another origin, or a token without the needed scope.",
        404: "Not found.",
        408: "The body did not arrive in time.",
        409: "Not possible in the present state.",
        413: "The body is too large.",
        415: "The body is not application/json.",
        421: "This Host is not served here.",
        429: "Too many requests; retry after `Retry-After` seconds.",
        422: "Invalid: `field` names what is wrong, `allowed` what is allowed.",
        503: "The database does not answer, or the server draws too many pictures; retry.",
    }.items()
}


_OF_RUNS = (
    runs,
    bulk,
    lists,
    forks,
    verdict,
    autopsy,
    trash,
    history,
    steps,
    series,
    memory,
    free_metrics,
    overview,
    figures,
    systems,
    theory,
    paper,
    stream,
)
_PARTS = (
    ingest,  # first, because a request tries the routes in order, and most requests are posts of records
    differences,
    *_OF_RUNS,
    alerts,
    sweeps,
    compare,
    claims,
    paper_table,
    exports,
    queues,
    service,
    tokens,
    users,
    audit,
    webhooks,
    silences,
)
API = [part.router for part in _PARTS]
PAGES = [run_list.router, new_run.router, pages.router, sign_in.router]


@cache
def _included() -> APIRouter:
    """All routes that do not depend on settings. They are built only once, because building them takes a while."""
    whole = APIRouter(responses=REFUSALS, generate_unique_id_function=_operation_name)
    for router in API:
        whole.include_router(router, dependencies=[Depends(refuse_unknown_parameters)])
    for router in PAGES:
        whole.include_router(router)
    return whole


def create_app(settings: Settings) -> FastAPI:
    """The application for these settings. Raises ValueError for settings that would give strangers access."""
    check_bind(settings.host, settings.token, settings.hosts, no_auth=not settings.auth)
    if settings.user_header and not settings.trusted_proxies:
        raise ValueError("STABLESSM_USER_HEADER is set: STABLESSM_TRUSTED_PROXIES must name the proxies that may send it")
    database = Database(settings.database_url)
    guard(database, SILENCE_SECONDS)
    broadcaster, readiness = Broadcaster(database), service.Readiness()
    housekeeping, searches = Housekeeping(database, settings), SearchRounds(database)
    listener = ChangeListener(broadcaster, database, settings.broker_url)
    token = _token(settings)
    token_cache = TokenCache(database, token, proxy_users=settings.proxy_users)
    sessions, log = Sessions(token_cache, token), Audit(database, settings.audit_days, token)
    base_url = f"http://{settings.hosts[0] if settings.hosts else f'{settings.host}:{settings.port}'}"
    webhook_delivery = WebhookDelivery(
        database, token=token, allowed=frozenset(settings.webhook_hosts), base_url=settings.public_url or base_url,
        smtp=smtp_of(settings),
        waits=Waits(settings.notify_critical_seconds, settings.notify_seconds, 3600 * settings.notify_repeat_hours),
    )  # fmt: skip

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        reaper = _reaper(database, settings, broadcaster, asyncio.get_running_loop())
        for part in (broadcaster, listener, token_cache, sessions, log, webhook_delivery, reaper, housekeeping, searches):
            part.start()
        yield
        await listener.close()
        await broadcaster.close()
        await asyncio.to_thread(reaper.close)
        await asyncio.to_thread(housekeeping.close)
        await asyncio.to_thread(searches.close)
        await asyncio.to_thread(webhook_delivery.close)
        await sessions.close()
        await token_cache.close()
        await asyncio.to_thread(state.reports.close)
        await asyncio.to_thread(log.close)
        readiness.close()
        state.metrics.close()
        database.close()

    app = FastAPI(
        title="StableSSM", version=__version__, description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None,
        redirect_slashes=False, routes=_included().routes,
    )  # fmt: skip
    files = assets.Assets()
    state = app.state
    state.settings, state.database, state.broadcaster, state.listener = settings, database, broadcaster, listener
    state.access = Access(
        token_cache, sessions, allowed_hosts(settings.host, settings.port, settings.hosts), RateLimit(settings.runs_per_minute),
        _report_limits(settings),
        settings.streams_per_token, FailedTokens(settings.failures_per_minute),
        Proxies(settings.trusted_proxies), settings.user_header,
    )  # fmt: skip
    state.audit, state.webhook_delivery = log, webhook_delivery
    state.reports = Reports(database, publisher(database, settings.broker_url))
    state.metrics, state.readiness = Metrics(database, settings, broadcaster, listener, log), readiness
    state.pages, state.sparks, state.verdicts = Pages(files), SparkCache(), OpenVerdicts()
    own = assets.router(files)
    app.include_router(own)
    state.routes = [route for router in (*API, own, *PAGES) for route in router.routes]
    install_handlers(app)
    app.add_middleware(Gate, access=state.access, audit=log)
    app.add_middleware(RequestTimer, metrics=state.metrics.requests)  # the last middleware added is the outermost
    _describe_security(app)
    return app


def _reaper(database: Database, settings: Settings, broadcaster: Broadcaster, loop: asyncio.AbstractEventLoop) -> LostRunReaper:
    def on_lost(_run_id: int) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(broadcaster.wake)

    return LostRunReaper(
        database, settings.lease_seconds, reported_lease_seconds=settings.reported_lease_seconds, broker_url=settings.broker_url,
        on_lost=on_lost,
    )  # fmt: skip


def _report_limits(settings: Settings) -> ReportLimits:
    posts, mib = settings.ingest_posts_per_minute, settings.ingest_mib_per_minute
    return ReportLimits(RateLimit(posts, burst_minutes=1), RateLimit(mib, burst_minutes=1))


def _token(settings: Settings) -> str | None:
    if not settings.auth:
        return None
    return settings.token or load_or_create_token(settings.data_dir / "token")


def _operation_name(route: APIRoute) -> str:
    return f"{route.tags[0] if route.tags else 'page'}_{route.name}"


def _describe_security(app: FastAPI) -> None:
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        schema = plain()
        schema.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"token": []}]
        schema["paths"]["/healthz"]["get"]["security"] = []
        for operation in (op for methods in schema["paths"].values() for op in methods.values()):
            for status, answer in operation["responses"].items():
                if status >= "400" and "application/json" not in answer["content"]:
                    # the framework also assigns the media type of the normal response to error responses
                    answer["content"] = {"application/json": next(iter(answer["content"].values()))}
        return schema

    app.openapi = openapi  # type: ignore[method-assign]

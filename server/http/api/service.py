"""The state of the service: workers, health, readiness, metrics."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse
from sqlalchemy.exc import SQLAlchemyError

from server.database.connection import Database
from server.database.revision import SchemaMismatch
from server.errors import Unavailable
from server.http.api.deps import DatabaseDep, SettingsDep
from server.http.metrics import Metrics
from server.http.schemas.runs import Health, WorkerList
from server.lifecycle.answers import workers_json
from stablessm_core import __version__

READY_SECONDS = 1.5

router = APIRouter(tags=["service"])


@router.get("/api/workers", response_model=WorkerList)
def workers(database: DatabaseDep, settings: SettingsDep) -> Any:
    """The known workers: their capabilities, last heartbeats and runs."""
    with database.read() as session:
        return {"workers": workers_json(session, settings.lease_seconds)}


@router.get("/healthz", response_model=Health)
async def healthz() -> Any:
    """The status is `ok` while the process runs. This request needs no token."""
    return {"status": "ok", "version": __version__}


@router.get("/readyz", response_model=Health)
async def readyz(database: DatabaseDep, request: Request) -> Any:
    """Check that the database answers and that its schema fits this version. Otherwise the response is 503 within two seconds,
    and `field` names the failed check."""
    readiness: Readiness = request.app.state.readiness
    checks = await readiness.checks(database)
    for name in ("database", "schema"):
        if not checks[name].startswith("ok"):
            raise Unavailable(f"not ready: {name}: {checks[name]}", field=name, headers={"Retry-After": "2"})
    checks["live"] = "push" if request.app.state.listener.connected else "polling"
    return {"status": "ok", "version": __version__, "checks": checks}


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request) -> PlainTextResponse:
    """Metrics in Prometheus' text format. The metrics that need the database are missing while the database does not answer."""
    measured: Metrics = request.app.state.metrics
    return PlainTextResponse(measured.text(), media_type="text/plain; version=0.0.4")


class Readiness:
    """Checks the database in a thread. While a check runs, further requests wait for its result."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "readiness")
        self._pending: Future[dict[str, str]] | None = None

    async def checks(self, database: Database) -> dict[str, str]:
        if self._pending is None or self._pending.done():
            self._pending = self._thread.submit(_ask, database)
        answer: asyncio.Future[dict[str, str]] = asyncio.wrap_future(self._pending)
        try:
            return dict(await asyncio.wait_for(asyncio.shield(answer), READY_SECONDS))
        except TimeoutError:
            return {"database": f"no answer within {READY_SECONDS:g} s", "schema": "unknown"}

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _ask(database: Database) -> dict[str, str]:
    try:
        return {"database": "ok", "schema": f"ok, {database.check_schema()}"}
    except SchemaMismatch as error:
        return {"database": "ok", "schema": str(error)}
    except SQLAlchemyError as error:
        return {"database": type(error).__name__, "schema": "unknown"}  # the error's text may name hosts and users

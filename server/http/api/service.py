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
from server.runs.answers import worker_answers
from stablessm_core import __version__

READY_SECONDS = 1.5

router = APIRouter(tags=["service"])


@router.get("/api/workers", response_model=WorkerList)
def workers(database: DatabaseDep, settings: SettingsDep) -> Any:
    """Known workers: what each can do, its last sign of life, what it trains."""
    with database.read() as session:
        return {"workers": worker_answers(session, settings.lease_seconds)}


@router.get("/healthz", response_model=Health)
async def healthz() -> Any:
    """The process is up. Needs no token."""
    return {"status": "ok", "version": __version__}


@router.get("/readyz", response_model=Health)
async def readyz(database: DatabaseDep, request: Request) -> Any:
    """The database answers and its schema fits; in two seconds 503 whose `field` is the check that fails. Push may be away."""
    readiness: Readiness = request.app.state.readiness
    checks = await readiness.checks(database)
    for name in ("database", "schema"):
        if not checks[name].startswith("ok"):
            raise Unavailable(f"not ready: {name}: {checks[name]}", field=name, headers={"Retry-After": "2"})
    checks["live"] = "push" if request.app.state.listener.connected else "polling"
    return {"status": "ok", "version": __version__, "checks": checks}


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request) -> PlainTextResponse:
    """Prometheus text format. While the database is away, those numbers that need it are absent."""
    measured: Metrics = request.app.state.metrics
    return PlainTextResponse(measured.text(), media_type="text/plain; version=0.0.4")


class Readiness:
    """Asks the database in a thread of its own. While one question waits for its answer, further requests wait for it too."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "readiness")
        self._asked: Future[dict[str, str]] | None = None

    async def checks(self, database: Database) -> dict[str, str]:
        if self._asked is None or self._asked.done():
            self._asked = self._thread.submit(_ask, database)
        answer: asyncio.Future[dict[str, str]] = asyncio.wrap_future(self._asked)
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
        return {"database": type(error).__name__, "schema": "unknown"}  # its text may name hosts and users

"""Exports runs as a file for another installation, and imports such files."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Iterator
from threading import Event
from typing import IO, Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from server.errors import Invalid, NotFound
from server.http.api.compare import ONE_OF
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.runs import filter_refusal
from server.http.bodies import ARCHIVE_TYPE
from server.http.schemas.runs import MAX_ID
from server.keep.archive import ArchiveError
from server.keep.exports import MAX_RUNS, check_ended, write_archive
from server.keep.imports import Imported, ImportStopped, import_archive
from server.lifecycle.submitters import owned_by
from server.search.filter_syntax import MAX_LENGTH, FilterError
from server.search.listing import chosen_runs

log = logging.getLogger("stablessm.server")
router = APIRouter(prefix="/api", tags=["archives"])

CHUNK_BYTES = 1 << 18
MEMORY_BYTES = 1 << 20  # a larger archive is written to an unnamed file in the data directory


class ExportQuery(BaseModel):
    """The runs to export. Exactly one of the fields must be set."""

    runs: str | None = Field(None, max_length=10_000, description=f"Run numbers separated by commas, at most {MAX_RUNS}.")
    sweep: int | None = Field(None, ge=1, le=MAX_ID)
    q: str | None = Field(None, max_length=MAX_LENGTH, description="A filter as in the list of runs.")


class ImportedRun(BaseModel):
    id: int = Field(description="Its number on this server.")
    url: str
    was: int = Field(description="Its number on the server that exported it.")


class ImportAnswer(BaseModel):
    """The imported runs and sweeps."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"source": "http://127.0.0.1:8000", "runs": [{"id": 12, "url": "/runs/12", "was": 3}], "sweeps": [2]}]
        }
    )
    source: str
    runs: list[ImportedRun]
    sweeps: list[int]


@router.get(
    "/exports",
    response_class=StreamingResponse,
    responses={200: {"content": {ARCHIVE_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
)
def export(
    request: Request,
    database: DatabaseDep,
    settings: SettingsDep,
    principal: PrincipalDep,
    query: Annotated[ExportQuery, Query()],
) -> StreamingResponse:
    """Export ended runs with all their recorded data as an archive that `POST /api/imports` of any server accepts."""
    given = [name for name in ("runs", "sweep", "q") if getattr(query, name) not in (None, "")]
    if len(given) != 1:
        raise Invalid(f"exactly one of runs, sweep and q is needed; {len(given)} are given", field="runs", allowed=ONE_OF)
    ids = _numbers(query.runs) if query.runs else None
    with database.read() as session:
        try:
            runs = chosen_runs(session, ids=ids, sweep=query.sweep, q=query.q or None, limit=MAX_RUNS, me=owned_by(principal))
        except LookupError as error:
            raise NotFound(str(error), field="runs") from None
        except FilterError as error:
            raise filter_refusal(error) from None
        except ValueError as error:
            raise Invalid(str(error), field=given[0], allowed=f"at most {MAX_RUNS} runs") from None
        check_ended(runs)
        chosen = [run.id for run in runs]
    if not chosen:
        raise NotFound("no run matches", field=given[0])
    file = _spool(settings.data_dir)
    try:
        write_archive(database, chosen, file, str(request.base_url).rstrip("/"))
    except LookupError as error:  # a run was deleted in the meantime
        file.close()
        raise NotFound(str(error), field="runs") from None
    except ArchiveError as error:
        file.close()
        raise Invalid(str(error), field="runs") from None
    except BaseException:
        file.close()
        raise
    size = file.tell()
    headers = {"Content-Length": str(size), "Content-Disposition": 'attachment; filename="stablessm-runs.tar"'}
    return StreamingResponse(_chunks(file), media_type=ARCHIVE_TYPE, headers=headers)


@router.post(
    "/imports",
    status_code=201,
    response_model=ImportAnswer,
    openapi_extra={
        "requestBody": {"required": True, "content": {ARCHIVE_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def take_in(request: Request, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep) -> Any:
    """Import all runs of an archive, or none of them. The runs are stored bit for bit under new numbers, together with their
    origin. Archives contain ended runs only. If the client disconnects, the import stops and stores nothing."""
    with _spool(settings.data_dir) as file:
        try:
            async for chunk in request.stream():
                file.write(chunk)
        except ClientDisconnect:
            return _nobody_waits()
        stop = Event()
        watch = asyncio.create_task(_stop_on_disconnect(request, stop))
        try:
            done: Imported = await run_in_threadpool(
                import_archive, database, file, submitted_by=principal.token_id, user_id=principal.user_id, stop=stop
            )
        except ArchiveError as error:
            raise Invalid(f"the archive is refused: {error}", field="body", allowed="an archive of GET /api/exports") from None
        except ImportStopped:
            return _nobody_waits()
        finally:
            watch.cancel()
    return {
        "source": done.source,
        "runs": [{"id": run_id, "url": f"/runs/{run_id}", "was": was} for run_id, was in done.runs],
        "sweeps": done.sweeps,
    }


def _nobody_waits() -> Response:
    log.info("an import stopped, because the client disconnected; nothing is stored")
    return Response(status_code=499)  # no client receives this answer


async def _stop_on_disconnect(request: Request, stop: Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    stop.set()


def _spool(folder: Any) -> IO[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.SpooledTemporaryFile(MEMORY_BYTES, dir=folder)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        raise Invalid(f"runs is {text[:80]!r}", field="runs", allowed="numbers separated by commas, such as 1,2,3")
    if len(set(parts)) > MAX_RUNS:
        raise Invalid(f"runs names {len(parts)} runs", field="runs", allowed=f"at most {MAX_RUNS}")
    return [int(part) for part in parts]

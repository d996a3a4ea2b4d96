"""A run's history: its log, its checkpoints and its status changes."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from typing import IO, Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from sqlalchemy.orm import Session

from server.checkpoint_store import StoreError
from server.database.models import CheckpointRow
from server.errors import Conflict, NotFound, Unavailable
from server.http.api.deps import DatabaseDep, SettingsDep
from server.http.api.runs import find_run
from server.http.schemas.history import CheckpointList, HistoryAnswer, LogAnswer, Step
from server.http.schemas.runs import MAX_ID, RunId
from server.lifecycle import checkpoints, history, logs
from server.lifecycle.forking import trouble_of
from server.settings import Settings
from server.webhooks.groups import notifications_json

CHUNK_BYTES = 1 << 20
FIRST_PIECES = 4  # number of log pieces that the page itself contains; most logs have at most this many
BINARY = {"type": "string", "format": "binary"}

_log = logging.getLogger("stablessm.server")
router = APIRouter(prefix="/api/runs", tags=["runs"])


def log_json(session: Session, run_id: int, after: int = 0) -> dict[str, Any]:
    """The LogAnswer of a run. Raises NotFound."""
    status = _status(session, run_id)
    pieces = logs.read_log(session, run_id, after)
    return {
        "run_id": run_id,
        "status": status,
        "pieces": [{"attempt": p.attempt, "start": p.start, "text": p.text, "at": p.at, "cut": p.cut} for p in pieces],
        "next": pieces[-1].end if pieces else after,
        "tracebacks": tracebacks_json(session, run_id),
    }


def log_start_json(session: Session, run_id: int) -> dict[str, Any]:
    """A LogAnswer with the first pieces only. The page loads the rest, starting at `next`. Raises NotFound."""
    found = log_json(session, run_id)
    pieces = found["pieces"][:FIRST_PIECES]
    return found | {"pieces": pieces, "next": pieces[-1]["start"] + len(pieces[-1]["text"]) if pieces else 0}


def tracebacks_json(session: Session, run_id: int) -> list[dict[str, Any]]:
    """The TracebackAnswer of each attempt that has a traceback."""
    return [{"attempt": row.attempt, "text": row.text, "at": row.at} for row in logs.read_tracebacks(session, run_id)]


@router.get(
    "/{run_id}/log",
    response_model=LogAnswer,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The log, as JSON or as plain text."}
    },
)
def log(
    run_id: RunId,
    database: DatabaseDep,
    after: Annotated[int, Query(ge=0, le=MAX_ID, description="`next` of the previous response, for newer text only.")] = 0,
    format: Annotated[Literal["json", "text"], Query(description="`text`: plain text with the tracebacks at the end.")] = "json",
) -> Any:
    """The output of the run's training processes, without secrets or absolute paths. During training, the log is about a second
    behind."""
    with database.read() as session:
        found = log_json(session, run_id, after)
    return PlainTextResponse(_plain(found)) if format == "text" else found


@router.get("/{run_id}/history", response_model=HistoryAnswer)
def of_run(
    run_id: RunId,
    database: DatabaseDep,
    since: Annotated[int, Query(ge=0, le=MAX_ID, description="Only events with a greater `seq`.")] = 0,
    limit: Annotated[int, Query(ge=1, le=history.MAX_EVENTS)] = history.MAX_EVENTS,
) -> Any:
    """Every change of the run's status with its reason, the run's attempts, the steps deleted after a rollback, and the messages
    about the run."""
    with database.read() as session:
        _status(session, run_id)
        return history_json(session, run_id, since=since, limit=limit)


def history_json(session: Session, run_id: int, **page: int) -> dict[str, Any]:
    """The HistoryAnswer."""
    return history.history_json(session, run_id, **page) | {"notifications": notifications_json(session, run_id)}


@router.get("/{run_id}/checkpoints", response_model=CheckpointList, name="checkpoints")
def list_checkpoints(run_id: RunId, database: DatabaseDep, settings: SettingsDep) -> Any:
    """The checkpoints from which the run can resume, newest first."""
    with database.read() as session:
        trouble = trouble_of(session, find_run(session, run_id))
        return {"run_id": run_id, "checkpoints": checkpoints.checkpoints_json(session, run_id, settings, trouble)}


@router.get(
    "/{run_id}/checkpoints/{step}",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/octet-stream": {"schema": BINARY}}, "description": "The file, safetensors."}},
)
def checkpoint(run_id: RunId, step: Step, database: DatabaseDep, settings: SettingsDep) -> Response:
    """The file of a checkpoint, checked against its recorded SHA-256, which is also in `ETag` and `Repr-Digest`.

    If this server does not have the file, the response is 409 and names the host that wrote the file.
    """
    with database.read() as session:
        _status(session, run_id)
        row = session.get(CheckpointRow, (run_id, step))
        if row is None:
            steps = [one["step"] for one in checkpoints.checkpoints_json(session, run_id, settings)]
            known = ", ".join(map(str, steps[:20])) or "none is recorded"
            raise NotFound(f"run {run_id} has no checkpoint of step {step}", field="step", allowed=known)
        host = history.hosts_of_attempts(session, run_id).get(row.attempt)
    file, size = _opened(row, host, settings)
    headers = {
        "Content-Length": str(size),
        "Content-Disposition": f'attachment; filename="run-{run_id}-step-{step:010d}.safetensors"',
        "ETag": f'"{row.sha256}"',
        "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(row.sha256)).decode()}:",
    }
    return StreamingResponse(_pieces(file), media_type="application/octet-stream", headers=headers)


def _opened(row: CheckpointRow, host: str | None, settings: Settings) -> tuple[IO[bytes], int]:
    """The file and its size. Raises Conflict if the file is damaged or not on this server."""
    try:
        file = checkpoints.open_checkpoint(row, settings)
    except checkpoints.NotHere:
        message = f"the checkpoint of step {row.step} is not on this server: host {host or 'of its worker'} wrote it"
        raise Conflict(message, field="step", allowed="the checkpoints that are `available` in the list") from None
    except StoreError as error:
        _log.warning("%s", error)
        raise Unavailable("the checkpoint store does not answer") from None
    try:
        return file, checkpoints.check_checkpoint(file, row.sha256)
    except checkpoints.Damaged as error:
        file.close()
        raise Conflict(f"the checkpoint of step {row.step} is damaged: {error}", field="step", allowed="another one") from None
    except BaseException:
        file.close()
        raise


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def _status(session: Session, run_id: int) -> str:
    return find_run(session, run_id).status


def _plain(found: dict[str, Any]) -> str:
    parts, attempt = [], 0
    for piece in found["pieces"]:
        if piece["cut"]:
            parts.append(f"… {piece['cut']:,} characters are not kept …\n")
        if piece["attempt"] != attempt:
            attempt = piece["attempt"]
            parts.append(f"--- attempt {attempt} ---\n")
        parts.append(piece["text"])
    for trace in found["tracebacks"]:
        parts.append(f"--- traceback of attempt {trace['attempt']} ---\n{trace['text'].rstrip()}\n")
    return "".join(parts)

"""The verdict on a run: how it ended, and why."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.http.api.deps import DatabaseDep
from server.http.api.runs import find_run
from server.http.schemas.runs import RunId
from server.http.schemas.verdict import VerdictAnswer
from server.lifecycle.forking import died_at, forks_json
from server.lifecycle.verdicts import judge_run
from server.series.encoding import json_response
from stablessm_core.telemetry.statuses import OPEN
from stablessm_core.verdict import confirmation

SHARED_SECONDS = 0.5  # viewers of an open run share a verdict for this time
KEPT = 1000  # maximum number of open runs whose verdict is kept

router = APIRouter(prefix="/api/runs", tags=["runs"])


@dataclass
class _Shared:
    lock: Lock = field(default_factory=Lock)
    seq: int = -1  # the run's newest event when the verdict was computed
    read_at: float = 0.0
    answer: bytes = b""


class OpenVerdicts:
    """The newest verdict on each open run. Every viewer asks once per second; the verdict is computed at most twice per second,
    and only after a new event. The verdict on an ended run is always computed."""

    def __init__(self) -> None:
        self._shared: dict[int, _Shared] = {}

    def read(self, database: Database, run_id: int) -> bytes:
        """The VerdictAnswer as JSON. Raises NotFound, DamagedPayload."""
        with database.read() as session:
            run = find_run(session, run_id)
            seq, is_open = run.seq, run.status in OPEN
        if not is_open:
            self._shared.pop(run_id, None)
            return _read(database, run_id)
        if len(self._shared) >= KEPT:
            self._shared.clear()
        shared = self._shared.setdefault(run_id, _Shared())
        with shared.lock:  # viewers who ask at the same time wait for one computation
            if seq != shared.seq and time.monotonic() - shared.read_at >= SHARED_SECONDS:
                shared.answer = _read(database, run_id)
                shared.seq, shared.read_at = seq, time.monotonic()
            return shared.answer


def _read(database: Database, run_id: int) -> bytes:
    with database.read() as session:
        return to_json(verdict_json(session, run_id), inf_nan_mode="strings")


def verdict_json(session: Session, run_id: int) -> dict[str, Any]:
    """The VerdictAnswer of a run. Raises NotFound, DamagedPayload."""
    run = find_run(session, run_id)
    found = judge_run(session, run)
    died = died_at(session, run)
    if died is not None:
        found["confirmed"] = [
            confirmation(
                found, fork["changes"], run_id=fork["id"], status=fork["status"], step=fork["step"], from_step=fork["from_step"],
                died_at=died,
            )
            for fork in reversed(forks_json(session, run, None))
        ]  # fmt: skip
    return {"run_id": run_id, "status": run.status, **found}


@router.get("/{run_id}/verdict", response_model=VerdictAnswer)
def verdict(request: Request, run_id: RunId, database: DatabaseDep) -> Response:
    """How the run ended, according to its recorded values: cause, order of events, evidence, and what to try. For a running
    run, the verdict covers the training so far.

    `cause` is null if all values are finite. `unstable` lists eigenvalues outside the stability boundary, whatever the cause.
    """
    verdicts: OpenVerdicts = request.app.state.verdicts
    return json_response(verdicts.read(database, run_id))

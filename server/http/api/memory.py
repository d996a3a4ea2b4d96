"""What a run's network remembers: its memory function, measured at evaluations."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from server.http.api.deps import DatabaseDep
from server.http.api.runs import find_run
from server.http.schemas.memory import MemoryAnswer
from server.http.schemas.runs import MAX_ID, RunId
from server.series.memory_function import memory_json
from stablessm_core.telemetry.nonfinite import json_safe

router = APIRouter(prefix="/api/runs", tags=["series"])


@router.get("/{run_id}/memory", response_model=MemoryAnswer)
def memory(
    run_id: RunId,
    database: DatabaseDep,
    step: Annotated[int | None, Query(ge=0, le=MAX_ID, description="Step of a measurement; by default the newest.")] = None,
) -> Any:
    """The memory function M(t) of the run's network at one evaluation: the size of its answer to an input t steps ago, with the
    fitted decay and the kernel of the task."""
    with database.read() as session:
        return json_safe(memory_json(session, find_run(session, run_id), step))

"""The free metrics of a run: the scalars that its program logged under names of its own, with their newest values."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Response
from pydantic_core import to_json
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.models import Run, SeriesRow
from server.http.api.deps import DatabaseDep
from server.http.api.runs import find_run
from server.http.schemas.runs import RunId
from server.http.schemas.series import Metrics
from server.series.encoding import json_response
from server.series.last_values import read_last_values
from stablessm_core.telemetry.metrics import METRIC_GROUPS

router = APIRouter(prefix="/api/runs", tags=["series"])


@router.get("/{run_id}/metrics", response_model=Metrics)
def metrics(run_id: RunId, database: DatabaseDep) -> Response:
    """The free metrics of a run by name, each with its newest value. `GET /api/runs/{run_id}/series/{name}` has all values of
    each."""
    with database.read() as session:
        return json_response(to_json(metrics_json(session, find_run(session, run_id))))


def metrics_json(session: Session, run: Run) -> dict[str, Any]:
    """The Metrics of a run."""
    named = select(SeriesRow.name).where(SeriesRow.run_id == run.id, SeriesRow.group_name.startswith(METRIC_GROUPS))
    names = sorted(session.scalars(named), key=_by_number)
    newest = read_last_values(session, [run.id], None if names else ()).get(run.id, {})
    found = [{"name": name, "group": group_of(name), "last": newest.get(name)} for name in names]
    return {"run_id": run.id, "seq": run.seq, "metrics": sorted(found, key=lambda one: (one["group"] == "", one["group"]))}


def _by_number(name: str) -> list[tuple[int, str]]:
    """The order of names in which layers/3 comes before layers/20."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def group_of(name: str) -> str:
    """The group in which a page shows the metric: the name up to its first slash; "" if it has none."""
    return name.partition("/")[0] if "/" in name else ""

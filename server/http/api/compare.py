"""Several runs side by side."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from server.access.tokens import Principal
from server.database.models import Run
from server.errors import Invalid, NotFound
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.runs import refused_filter
from server.http.api.series import columns_of
from server.http.schemas.runs import MAX_ID
from server.http.schemas.series import CompareAnswer
from server.runs.answers import run_answers, run_rows
from server.runs.comparison import MAX_RUNS, compare
from server.runs.filter_syntax import MAX_LENGTH, FilterError
from server.runs.listing import chosen_runs
from server.runs.submitters import mine
from server.series.encoding import dumps
from server.series.reading import SeriesData
from stablessm_core import typed_arrays
from stablessm_core.nonfinite import json_safe

router = APIRouter(prefix="/api/compare", tags=["compare"])

ONE_OF = "runs=1,2,3 or sweep=1 or q=..."


class CompareQuery(BaseModel):
    """Which runs, exactly one way of saying it, and what they are grouped by."""

    runs: str | None = Field(None, max_length=2000, description=f"Numbers separated by commas, at most {MAX_RUNS}.")
    sweep: int | None = Field(None, ge=1, le=MAX_ID)
    q: str | None = Field(None, max_length=MAX_LENGTH, description="A filter as in the list of runs.")
    group_by: str | None = Field(
        None, max_length=500, description="Dotted paths of the configuration separated by commas; none gives no groups."
    )

    @property
    def given(self) -> list[str]:
        return [name for name in ("runs", "sweep", "q") if getattr(self, name) not in (None, "")]


Compared = Annotated[CompareQuery, Query()]


@router.get("", response_model=CompareAnswer)
def read(database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, query: Compared) -> Response:
    """Table, differences of the configurations, curves, ranges of grad_over_weight with finite / total, groups."""
    with database.read() as session:
        return Response(
            dumps(json_safe(compare_runs(session, query, principal, settings.lease_seconds))), media_type="application/json"
        )


def compare_runs(session: Session, query: CompareQuery, principal: Principal, lease_seconds: float) -> dict[str, Any]:
    """CompareAnswer for the query. Raises Invalid, NotFound."""
    if len(query.given) != 1:
        raise Invalid(f"compare needs one way to choose runs; {len(query.given)} are given", field="runs", allowed=ONE_OF)
    ids = _numbers(query.runs) if query.given == ["runs"] else None
    try:
        me = mine(principal)
        runs = chosen_runs(session, ids=ids, sweep=query.sweep, q=query.q or None, limit=MAX_RUNS, me=me)
    except LookupError as error:
        raise NotFound(str(error), field="runs") from None
    except FilterError as error:
        raise refused_filter(error) from None
    except ValueError as error:
        raise Invalid(str(error), field=query.given[0], allowed=f"at most {MAX_RUNS} runs") from None
    paths = [path.strip() for path in (query.group_by or "").split(",") if path.strip()]
    try:
        found = compare(session, runs, group_by=paths)
    except ValueError as error:
        raise Invalid(str(error), field="group_by", allowed=str(error).partition("allowed are ")[2] or None) from None
    rows = {row.id: row for row in run_rows(session, Run.id.in_([run.id for run in found.runs]))}
    return {
        "runs": run_answers(session, [rows[run.id] for run in found.runs], lease_seconds),
        "differences": found.differences,
        "ranges": found.ranges,
        "groups": found.groups,
        "curves": {
            str(run_id): {name: _curve(name, data) for name, data in curves.items()} for run_id, curves in found.curves.items()
        },
    }


def _curve(name: str, data: SeriesData) -> dict[str, Any]:
    return {
        "name": name,
        "width": 1,
        "unit": data.unit,
        **{key: typed_arrays.encode(values) for key, values in columns_of(data).items()},
    }


def _numbers(text: str | None) -> list[int]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        raise Invalid(f"runs is {(text or '')[:80]!r}", field="runs", allowed="numbers separated by commas, such as 1,2,3")
    if len(parts) > MAX_RUNS:
        raise Invalid(f"runs names {len(parts)} runs", field="runs", allowed=f"at most {MAX_RUNS}")
    return [int(part) for part in parts]

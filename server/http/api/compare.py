"""Several runs side by side."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.access.tokens import Principal
from server.database.models import NOT_IN_TRASH, Run
from server.errors import Invalid, NotFound
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.runs import refused_filter
from server.http.api.series import columns_of
from server.http.schemas.compare import CompareAnswer, CompareCurves
from server.http.schemas.runs import MAX_ID
from server.runs.answers import run_answers, run_rows
from server.runs.compare_curves import CURVE_POINTS, ranges, read_curves
from server.runs.comparison import MAX_RUNS, Comparison, compare
from server.runs.filter_syntax import MAX_LENGTH, FilterError
from server.runs.listing import chosen_runs
from server.runs.submitters import mine
from server.series.encoding import dumps
from server.series.reading import SeriesData
from stablessm_core import typed_arrays
from stablessm_core.nonfinite import json_safe

router = APIRouter(prefix="/api/compare", tags=["compare"])

CurveName = Literal["train/loss", "max_grad_over_weight"]
ONE_OF = "runs=1,2,3 or sweep=1 or q=..."


class CompareQuery(BaseModel):
    """Which runs, exactly one way of saying it, and what they are grouped by."""

    runs: str | None = Field(None, max_length=4000, description=f"Numbers separated by commas, at most {MAX_RUNS}.")
    sweep: int | None = Field(None, ge=1, le=MAX_ID)
    q: str | None = Field(None, max_length=MAX_LENGTH, description="A filter as in the list of runs.")
    group_by: str | None = Field(
        None, max_length=500, description="Dotted paths of the configuration separated by commas; none gives no groups."
    )

    against: str | None = Field(
        None, max_length=500, description="Label of the group that the others are paired with; the best one without it."
    )

    @property
    def given(self) -> list[str]:
        return [name for name in ("runs", "sweep", "q") if getattr(self, name) not in (None, "")]


class CurvesQuery(CompareQuery):
    """Which runs, and which curve of theirs."""

    series: CurveName = Field("train/loss", description="One curve per run.")
    points: int = Field(CURVE_POINTS, ge=10, le=2000, description="At most so many buckets to a curve.")


class PageQuery(CompareQuery):
    """The same for the page, and how it shows them: its address gives the same view again."""

    show: Literal["runs", "groups"] | None = None
    x: Literal["step", "tokens", "seconds"] = "step"
    y: Literal["log", "linear"] = "log"
    on: str | None = Field(None, max_length=4000, description="Runs whose lines are shown, where few are.")
    off: str | None = Field(None, max_length=4000, description="Runs whose lines are hidden, where few are.")
    first: float | None = Field(None, alias="from", allow_inf_nan=False, description="Where the shown part of the axis begins.")
    last: float | None = Field(None, alias="to", allow_inf_nan=False, description="Where it ends.")


Compared = Annotated[CompareQuery, Query()]
Curved = Annotated[CurvesQuery, Query()]
OnPage = Annotated[PageQuery, Query()]


@router.get("", response_model=CompareAnswer)
def read(database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, query: Compared) -> Response:
    """What differs, what became of each run, groups with finite / total and stable / total, curves, ranges of the ratios."""
    with database.read() as session:
        runs = compared_runs(session, query, principal)
        answer = compare_runs(session, runs, query, settings.lease_seconds)
    return Response(dumps(json_safe(answer)), media_type="application/json")


@router.get("/curves", response_model=CompareCurves)
def curves(database: DatabaseDep, principal: PrincipalDep, query: Curved) -> Response:
    """One curve of each run, and with the ratios their ranges by run and by map: what a chart of many runs needs."""
    with database.read() as session:
        read = read_curves(session, compared_runs(session, query, principal), query.points, (query.series,))
    answer = {
        "curves": {str(one.run_id): {name: _curve(name, data) for name, data in one.curves.items()} for one in read},
        "ranges": [one.range for one in read if one.range["total"]],
        "pooled": ranges(read),
    }
    return Response(dumps(json_safe(answer)), media_type="application/json")


def compared_runs(session: Session, query: CompareQuery, principal: Principal) -> list[Run]:
    """The runs that are asked for. Raises Invalid, NotFound."""
    if len(query.given) != 1:
        raise Invalid(f"compare needs one way to choose runs; {len(query.given)} are given", field="runs", allowed=ONE_OF)
    ids = run_numbers(query.runs) if query.given == ["runs"] else None
    try:
        me = mine(principal)
        return chosen_runs(session, ids=ids, sweep=query.sweep, q=query.q or None, limit=MAX_RUNS, me=me)
    except LookupError as error:
        raise NotFound(str(error), field="runs") from None  # a program must not go on with fewer runs than it named
    except FilterError as error:
        raise refused_filter(error) from None
    except ValueError as error:
        raise Invalid(str(error), field=query.given[0], allowed=f"at most {MAX_RUNS} runs") from None


def without_missing(session: Session, query: CompareQuery) -> list[int]:
    """Takes the runs that do not exist (or are in the trash) out of the query, and gives their numbers. Raises Invalid."""
    if query.given != ["runs"]:
        return []
    ids = list(dict.fromkeys(run_numbers(query.runs)))
    there = set(session.scalars(select(Run.id).where(Run.id.in_(ids), NOT_IN_TRASH)))
    query.runs = ",".join(str(i) for i in ids if i in there)
    return [i for i in ids if i not in there]


def compare_runs(
    session: Session, runs: list[Run], query: CompareQuery, lease_seconds: float, *, curves: bool = True
) -> dict[str, Any]:
    """CompareAnswer of these runs, without curves and ranges if they are not wanted. Raises Invalid."""
    paths = [path.strip() for path in (query.group_by or "").split(",") if path.strip()]
    try:
        found: Comparison = compare(session, runs, group_by=paths, against=query.against or None, curves=curves)
    except ValueError as error:
        given, _, allowed = str(error).partition("; allowed are ")
        raise Invalid(given, field=given.partition(" ")[0], allowed=allowed or None) from None
    rows = {row.id: row for row in run_rows(session, Run.id.in_([run.id for run in found.runs]))}
    return {
        "runs": run_answers(session, [rows[run.id] for run in found.runs], lease_seconds),
        "differences": found.differences,
        "ends": found.ends,
        "groups": found.groups,
        "paired": found.paired,
        "ranges": found.ranges,
        "pooled": found.pooled,
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


def run_numbers(text: str | None) -> list[int]:
    """Raises Invalid for what are no numbers of runs."""
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        raise Invalid(f"runs is {(text or '')[:80]!r}", field="runs", allowed="numbers separated by commas, such as 1,2,3")
    if len(parts) > MAX_RUNS:
        raise Invalid(f"runs names {len(parts)} runs", field="runs", allowed=f"at most {MAX_RUNS}")
    return [int(part) for part in parts]

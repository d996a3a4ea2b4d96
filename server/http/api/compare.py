"""The endpoints that compare several runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, BeforeValidator, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.access.tokens import Principal
from server.compare.claims import claims_json, group_claims
from server.compare.compare_curves import CURVE_POINTS, CURVES, ranges_json, read_curves
from server.compare.compare_metrics import read_metric
from server.compare.comparison import MAX_RUNS, Comparison, compare, drawn_runs
from server.database.models import NOT_IN_TRASH, Run
from server.errors import Invalid, NotFound
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.runs import filter_refusal
from server.http.api.series import columns_of
from server.http.schemas.compare import CompareAnswer, CompareCurves
from server.http.schemas.runs import MAX_ID
from server.lifecycle.answers import run_rows, runs_json
from server.lifecycle.submitters import owned_by
from server.search.filter_syntax import MAX_LENGTH, FilterError
from server.search.listing import chosen_runs
from server.series.encoding import dumps
from server.series.reading import SeriesData
from stablessm_core.telemetry import typed_arrays
from stablessm_core.telemetry.nonfinite import json_safe
from stablessm_core.telemetry.series import TRAIN_LOSS

MAX_SWEEP_RUNS = 10_000  # an imported sweep may have more runs than can be submitted
router = APIRouter(prefix="/api/compare", tags=["compare"])

ONE_OF = "runs=1,2,3 or sweep=1 or q=..."


class CompareQuery(BaseModel):
    """The runs to compare and how to group them. Exactly one of `runs`, `sweep` and `q` must be set."""

    runs: str | None = Field(None, max_length=4000, description=f"Run numbers separated by commas, at most {MAX_RUNS}.")
    sweep: int | None = Field(None, ge=1, le=MAX_ID, description="A sweep, with all its runs.")
    q: str | None = Field(None, max_length=MAX_LENGTH, description="A filter as in the list of runs.")
    group_by: str | None = Field(
        None,
        max_length=500,
        description="Dotted paths of configuration fields, separated by commas. An empty value forms no groups.",
    )

    against: str | None = Field(
        None, max_length=500, description="Label of the group that the others are compared with, by default the best group."
    )

    @property
    def given(self) -> list[str]:
        return [name for name in ("runs", "sweep", "q") if getattr(self, name) not in (None, "")]


class CurvesQuery(CompareQuery):
    """The runs to compare, and the curve to read."""

    series: str = Field(
        TRAIN_LOSS,
        max_length=200,
        description="The series to read, one curve per run: `train/loss`, `max_grad_over_weight`, or a series of every run. "
        "A series with a value per eigenvalue is reduced to its smallest distance to the boundary, or else its largest value.",
    )
    points: int = Field(CURVE_POINTS, ge=10, le=2000, description="Maximum number of buckets per curve.")


class PageQuery(CompareQuery):
    """The runs and the state of the page. The page's address contains both, so opening it restores the view."""

    show: Literal["runs", "groups"] | None = None
    x: Literal["step", "tokens", "seconds"] = "step"
    y: Literal["log", "linear"] = "log"
    metric: str = Field("", max_length=200, description="The series of the first chart, by default `train/loss`.")
    smooth: Annotated[float, BeforeValidator(lambda given: 0 if given == "" else given)] = Field(
        0, ge=0, lt=1, description="Weight of the exponential mean that smooths the lines of runs. 0: not smoothed."
    )
    on: str | None = Field(None, max_length=4000, description="Runs whose lines are shown; set if most lines are hidden.")
    off: str | None = Field(None, max_length=4000, description="Runs whose lines are hidden; set if most lines are shown.")
    first: float | None = Field(None, alias="from", allow_inf_nan=False, description="Start of the shown part of the axis.")
    last: float | None = Field(None, alias="to", allow_inf_nan=False, description="End of the shown part of the axis.")


Compared = Annotated[CompareQuery, Query()]
Curved = Annotated[CurvesQuery, Query()]
OnPage = Annotated[PageQuery, Query()]


@router.get("", response_model=CompareAnswer)
def read(database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, query: Compared) -> Response:
    """Compare several runs: their differences, how each run ended, groups with the shares finite / total and stable / total,
    curves, and ranges of gradient-over-weight ratios. Of a sweep with more than 200 runs, a random sample of 200 runs, always the
    same, has curves and ranges (`drawn`); everything else is about all its runs."""
    with database.read() as session:
        runs = compared_runs(session, query, principal)
        answer = comparison_json(session, runs, query, settings.lease_seconds)
    return Response(dumps(json_safe(answer)), media_type="application/json")


@router.get("/curves", response_model=CompareCurves)
def curves(database: DatabaseDep, principal: PrincipalDep, query: Curved) -> Response:
    """One curve per run, for a chart of many runs. Of a sweep with more than 200 runs, only the runs in `drawn` of the comparison
    have curves. For ratios, the response also contains their ranges by run and by map."""
    if query.series not in CURVES:
        with database.read() as session:
            metric = metric_curves(session, drawn_runs(compared_runs(session, query, principal)), query.series, query.points)
        answer: dict[str, Any] = {"ranges": [], "pooled": []}
        answer["curves"] = {str(run_id): {query.series: _curve_json(query.series, data)} for run_id, data in metric.items()}
        return Response(dumps(json_safe(answer)), media_type="application/json")
    with database.read() as session:
        read = read_curves(session, drawn_runs(compared_runs(session, query, principal)), query.points, (query.series,))
    answer = {
        "curves": {str(one.run_id): {name: _curve_json(name, data) for name, data in one.curves.items()} for one in read},
        "ranges": [one.range for one in read if one.range["total"]],
        "pooled": ranges_json(read),
    }
    return Response(dumps(json_safe(answer)), media_type="application/json")


def metric_curves(session: Session, runs: list[Run], name: str, points: int) -> dict[int, SeriesData]:
    """The metric of each run. Raises Invalid for a series that some run does not have."""
    try:
        return read_metric(session, runs, points, name)
    except ValueError as error:
        given, _, allowed = str(error).partition("; allowed: ")
        raise Invalid(given, field="series", allowed=allowed) from None


def compared_runs(session: Session, query: CompareQuery, principal: Principal) -> list[Run]:
    """The requested runs. Raises Invalid, NotFound."""
    if len(query.given) != 1:
        raise Invalid(f"exactly one of runs, sweep and q is needed; {len(query.given)} are given", field="runs", allowed=ONE_OF)
    ids = run_numbers(query.runs) if query.given == ["runs"] else None
    most = MAX_SWEEP_RUNS if query.sweep else MAX_RUNS
    try:
        me = owned_by(principal)
        return chosen_runs(session, ids=ids, sweep=query.sweep, q=query.q or None, limit=most, me=me)
    except LookupError as error:
        raise NotFound(str(error), field="runs") from None  # a program must not continue with fewer runs than it requested
    except FilterError as error:
        raise filter_refusal(error) from None
    except ValueError as error:
        raise Invalid(str(error), field=query.given[0], allowed=f"at most {most:,} runs") from None


def without_missing(session: Session, query: CompareQuery) -> list[int]:
    """Remove missing and trashed runs from the query, and return their numbers. Raises Invalid."""
    if query.given != ["runs"]:
        return []
    ids = list(dict.fromkeys(run_numbers(query.runs)))
    there = set(session.scalars(select(Run.id).where(Run.id.in_(ids), NOT_IN_TRASH)))
    query.runs = ",".join(str(i) for i in ids if i in there)
    return [i for i in ids if i not in there]


def comparison_json(
    session: Session, runs: list[Run], query: CompareQuery, lease_seconds: float, *, curves: bool = True, thin: bool = False
) -> dict[str, Any]:
    """The CompareAnswer of these runs. Raises Invalid.

    `curves=False` omits curves and ranges. With `thin=True`, `runs`, `ends` and the values of `differences` are only those of
    the runs in `drawn`.
    """
    paths = [path.strip() for path in (query.group_by or "").split(",") if path.strip()]
    try:
        found: Comparison = compare(session, runs, group_by=paths, against=query.against or None, curves=curves)
    except ValueError as error:
        given, _, allowed = str(error).partition("; allowed: ")
        raise Invalid(given, field=given.partition(" ")[0], allowed=allowed or None) from None
    drawn = set(found.drawn)
    kept = [i for i, run in enumerate(found.runs) if run.id in drawn or not thin]
    ids = [found.runs[i].id for i in kept]
    rows = {row.id: row for row in run_rows(session, Run.id.in_(ids))}
    return {
        "total": len(found.runs),
        "drawn": found.drawn,
        "runs": runs_json(session, [rows[number] for number in ids], lease_seconds),
        "differences": [{**row, "values": [row["values"][i] for i in kept]} for row in found.differences],
        "differences_left_out": found.differences_left_out,
        "ends": [found.ends[i] for i in kept],
        "groups": found.groups,
        "paired": found.paired,
        "claims": claims_json(group_claims(found)),
        "ranges": found.ranges,
        "pooled": found.pooled,
        "curves": {
            str(run_id): {name: _curve_json(name, data) for name, data in curves.items()}
            for run_id, curves in found.curves.items()
        },
    }


def _curve_json(name: str, data: SeriesData) -> dict[str, Any]:
    return {
        "name": name,
        "width": 1,
        "unit": data.unit,
        **{key: typed_arrays.encode(values) for key, values in columns_of(data).items()},
    }


def run_numbers(text: str | None) -> list[int]:
    """The run numbers in a list separated by commas. Raises Invalid."""
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        raise Invalid(f"runs is {(text or '')[:80]!r}", field="runs", allowed="numbers separated by commas, such as 1,2,3")
    if len(parts) > MAX_RUNS:
        raise Invalid(f"runs names {len(parts)} runs", field="runs", allowed=f"at most {MAX_RUNS}")
    return [int(part) for part in parts]

"""Sweeps: submit a grid or a search of runs, list, name and cancel sweeps, and read their results as a table or grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.compare import table_formats
from server.compare.claims import GroupClaim, claims_json, claims_of, notes
from server.compare.sweep_grid import Grid, grid_json, grid_table, sweep_grid
from server.compare.sweep_table import COUNTS, Table, drop_empty_columns, group_table, run_table, select_columns
from server.compare.sweeps import sweep_json_parts, sweep_list_json
from server.database.models import NOT_IN_TRASH, Run, Sweep
from server.errors import Invalid, NotFound
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.schemas.queues import queue_columns
from server.http.schemas.sweeps import (
    SweepAnswer,
    SweepGrid,
    SweepId,
    SweepList,
    SweepPatch,
    SweepQuery,
    SweepRequest,
    SweepTable,
    TableFormat,
)
from server.lifecycle import transitions as lifecycle
from server.lifecycle.submitters import check_own
from server.lifecycle.sweep_submission import submit_sweep
from server.series.encoding import dumps, json_response
from stablessm_core.telemetry.nonfinite import json_safe
from stablessm_core.telemetry.statuses import OPEN

# the formats of a table other than JSON
TABLES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "text/csv": {"example": "run,optimizer.lr,status,train_loss\r\n1,0.01,finished,0.0021\r\n2,0.3,diverged,nan\r\n"},
            "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}},
            "text/markdown": {"example": "| run | train_loss |\n| ---: | ---: |\n| 1 | 0.0021 |\n"},
            "application/x-tex": {"example": "\\begin{tabular}{rr}\n"},
        }
    }
}
router = APIRouter(prefix="/api/sweeps", tags=["sweeps"])

FILES = {  # media type, file ending, writer
    "csv": ("text/csv; charset=utf-8", "csv", table_formats.as_csv),
    "parquet": ("application/vnd.apache.parquet", "parquet", table_formats.as_parquet),
    "markdown": ("text/markdown; charset=utf-8", "md", table_formats.as_markdown),
    "latex": ("application/x-tex; charset=utf-8", "tex", table_formats.as_latex),
}
FOR_PEOPLE, FOR_PROGRAMS = ("markdown", "latex"), ("csv", "parquet")
Listed = Annotated[SweepQuery, Query()]
Names = Annotated[str | None, Query(max_length=2000)]
Axis = Annotated[str | None, Query(max_length=200, description="Path of a setting that the sweep varies.")]


def find_sweep(session: Session, sweep_id: int) -> Sweep:
    sweep = session.get(Sweep, sweep_id)
    if sweep is None:
        raise NotFound(f"there is no sweep {sweep_id}", field="sweep_id")
    return sweep


@router.post("", status_code=201, response_model=SweepAnswer, responses={200: {"model": SweepAnswer}})
def submit(
    request: SweepRequest,
    database: DatabaseDep,
    settings: SettingsDep,
    principal: PrincipalDep,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=200, description="A repeated request with the same key and body submits only once."),
    ] = None,
) -> Response:
    """Queue one run per combination of the grid, or per trial of the search. If one run is refused, no run is queued. The status
    is 201 for a new sweep, and 200 if an earlier request with the same idempotency key created the sweep."""
    if (request.grid is None) == (request.search is None):
        raise Invalid(
            "exactly one of grid and search is needed", field="grid", allowed="a grid with at least one setting, or a search"
        )
    sweep_id, new = submit_sweep(
        database, settings, request.base, grid=request.grid, search=request.search, name=request.name, key=idempotency_key,
        submitted_by=principal.token_id, user_id=principal.user_id, queue_columns=queue_columns(request),
        project=request.project,
    )  # fmt: skip
    answer = show(sweep_id, database, settings)
    answer.status_code = 201 if new else 200
    answer.headers["Location"] = f"/api/sweeps/{sweep_id}"
    return answer


@router.get("", response_model=SweepList)
def index(database: DatabaseDep, query: Listed) -> Any:
    """The sweeps in pages, newest first, with counts of their runs by outcome."""
    with database.read() as session:
        return sweep_list_json(session, **query.model_dump())


@router.get("/{sweep_id}", response_model=SweepAnswer)
def show(sweep_id: SweepId, database: DatabaseDep, settings: SettingsDep) -> Response:
    """A sweep with all its runs."""
    with database.read() as session:
        facts, runs = sweep_json_parts(session, find_sweep(session, sweep_id), settings.lease_seconds)
    # the runs are JSON text of the database: parsing and encoding 2,000 configurations again would take longer than all the rest
    return json_response(dumps(json_safe(facts))[:-1] + b',"runs":[' + b",".join(runs) + b"]}")


@router.patch("/{sweep_id}", response_model=SweepAnswer)
def change(
    sweep_id: SweepId, patch: SweepPatch, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep
) -> Response:
    """Name a sweep."""
    with database.write() as session:
        sweep = find_sweep(session, sweep_id)
        # checking one run is enough, because all runs of a sweep were submitted together
        check_own(principal, *session.scalars(select(Run).where(Run.sweep_id == sweep_id).limit(1)))
        if "name" in patch.model_fields_set:
            sweep.name = patch.name
    return show(sweep_id, database, settings)


@router.post("/{sweep_id}/cancel", response_model=SweepAnswer)
def cancel(sweep_id: SweepId, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep) -> Response:
    """Cancel every queued or running run of a sweep, as `POST /api/runs/{id}/cancel` does."""
    with database.write() as session:
        find_sweep(session, sweep_id)
        check_own(principal, *session.scalars(select(Run).where(Run.sweep_id == sweep_id, Run.status.in_(OPEN))))
        lifecycle.cancel_sweep(session, sweep_id)
    return show(sweep_id, database, settings)


@router.get(
    "/{sweep_id}/table",
    response_model=SweepTable,
    responses=TABLES,
)
def table(
    sweep_id: SweepId,
    database: DatabaseDep,
    format: Annotated[TableFormat, Query()] = "json",
    group_by: Names = None,
    columns: Names = None,
) -> Response:
    """A table with a row per run of the sweep: settings, status, final metrics, and where the run diverged. Non-finite numbers
    are kept.

    `group_by` names columns, separated by commas. Each row is then a group of runs, with finite / total, stable / total and, over
    the finite runs, median, quartiles, minimum, maximum, mean and standard deviation of each metric. `columns` selects and orders
    the columns. JSON, Markdown and LaTeX also answer which layer or map does better, as in `GET /api/compare`. Markdown and LaTeX
    round to six digits and omit `status_reason` and empty columns, unless `columns` names them.
    """
    with database.read() as session:
        made = run_table(session, find_sweep(session, sweep_id))
        claims = [] if format in FOR_PROGRAMS else sweep_claims(session, sweep_id)
    made = replace(made, notes=notes(claims))
    made = _asked(made, _names(group_by), _names(columns), short=format in FOR_PEOPLE)
    if format == "json":
        return json_response(dumps(json_safe(_table_json(made) | {"claims": claims_json(claims)})))
    media, ending, write = FILES[format]
    headers = {"Content-Disposition": f'attachment; filename="sweep-{sweep_id}.{ending}"'}
    return Response(write(made), media_type=media, headers=headers)


@router.get("/{sweep_id}/grid", response_model=SweepGrid, responses=TABLES)
def grid(
    sweep_id: SweepId,
    database: DatabaseDep,
    format: Annotated[TableFormat, Query()] = "json",
    rows: Axis = None,
    columns: Axis = None,
) -> Response:
    """How the runs ended, as a grid over two of the settings that the sweep varies. By default, rows are maps and columns are
    learning rates.

    Each cell has finite / total, stable / total and, over its finite runs, the median and quartiles of the final loss.
    """
    with database.read() as session:
        made = requested_grid(session, find_sweep(session, sweep_id), rows, columns)
    if format == "json":
        return json_response(dumps(json_safe(grid_json(made))))
    media, ending, write = FILES[format]
    headers = {"Content-Disposition": f'attachment; filename="sweep-{sweep_id}-grid.{ending}"'}
    return Response(write(grid_table(made)), media_type=media, headers=headers)


def sweep_claims(session: Session, sweep_id: int) -> list[GroupClaim]:
    """The claims about the layers or maps of the sweep."""
    return claims_of(session, list(session.scalars(select(Run).where(Run.sweep_id == sweep_id, NOT_IN_TRASH).order_by(Run.id))))


def requested_grid(session: Session, sweep: Sweep, rows: str | None, columns: str | None) -> Grid:
    """The grid along these axes. Raises Invalid for a setting that the sweep does not vary."""
    try:
        return sweep_grid(session, sweep, rows or None, columns or None)
    except ValueError as error:
        given, _, allowed = str(error).partition("; allowed: ")
        raise Invalid(given, field=given.partition(" ")[0], allowed=allowed) from None


def _asked(made: Table, group_by: list[str], names: list[str], *, short: bool) -> Table:
    """The table with the requested groups and columns. Raises Invalid for a name that is not a column."""
    try:
        made = group_table(made, group_by) if group_by else made
        if names:
            return select_columns(made, names)
    except ValueError as error:
        given, _, allowed = str(error).partition("; allowed: ")
        raise Invalid(given, field=given.partition(" ")[0], allowed=allowed) from None
    return drop_empty_columns(select_columns(made, [name for name in made.names if name != "status_reason"])) if short else made


def _table_json(made: Table) -> dict[str, Any]:
    return {
        "sweep_id": made.sweep_id,
        "name": made.name,
        "columns": [vars(column) for column in made.columns],
        "rows": [dict(zip(made.names, row, strict=True)) for row in made.rows],
        "statuses": dict(made.statuses),
        **{name: getattr(made.of, name) for name in COUNTS},
    }


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]

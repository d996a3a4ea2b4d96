"""Sweeps: a grid of runs from one base, listed, named, stopped, and as one table of what came out."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.models import Run, Sweep
from server.errors import Invalid, NotFound
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.schemas.queues import columns
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
from server.runs import lifecycle, table_formats
from server.runs.submission import submit_sweep
from server.runs.submitters import check_own
from server.runs.sweep_grid import Grid, grid_answer, grid_table, sweep_grid
from server.runs.sweep_table import COUNTS, Table, grouped, run_table, selected, without_empty
from server.runs.sweeps import sweep_answer, sweep_page
from server.series.encoding import dumps, json_response
from stablessm_core.nonfinite import json_safe

# what a table is sent as, beside its JSON
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

FILES = {  # media type, how a file of it is called, what writes it
    "csv": ("text/csv; charset=utf-8", "csv", table_formats.as_csv),
    "parquet": ("application/vnd.apache.parquet", "parquet", table_formats.as_parquet),
    "markdown": ("text/markdown; charset=utf-8", "md", table_formats.as_markdown),
    "latex": ("application/x-tex; charset=utf-8", "tex", table_formats.as_latex),
}
FOR_PEOPLE = ("markdown", "latex")
Listed = Annotated[SweepQuery, Query()]
Names = Annotated[str | None, Query(max_length=2000)]
Axis = Annotated[str | None, Query(max_length=200, description="Path of something that the sweep varies.")]


def find_sweep(session: Session, sweep_id: int) -> Sweep:
    sweep = session.get(Sweep, sweep_id)
    if sweep is None:
        raise NotFound(f"there is no sweep {sweep_id}", field="sweep_id")
    return sweep


@router.post("", status_code=201, response_model=SweepAnswer)
def submit(request: SweepRequest, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep) -> Any:
    """Queue one run per combination of the grid; all of them or, if one is refused, none."""
    sweep_id = submit_sweep(
        database, settings, request.base, request.grid, name=request.name, submitted_by=principal.token_id,
        user_id=principal.user_id, place=columns(request),
    )  # fmt: skip
    return show(sweep_id, database, settings)


@router.get("", response_model=SweepList)
def index(database: DatabaseDep, query: Listed) -> Any:
    """Sweeps, the newest first, page by page, with how many of their runs finished finite, diverged, failed."""
    with database.read() as session:
        return sweep_page(session, **query.model_dump())


@router.get("/{sweep_id}", response_model=SweepAnswer)
def show(sweep_id: SweepId, database: DatabaseDep, settings: SettingsDep) -> Any:
    """A sweep with all its runs."""
    with database.read() as session:
        return sweep_answer(session, find_sweep(session, sweep_id), settings.lease_seconds)


@router.patch("/{sweep_id}", response_model=SweepAnswer)
def change(sweep_id: SweepId, patch: SweepPatch, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep) -> Any:
    """Name a sweep."""
    with database.write() as session:
        sweep = find_sweep(session, sweep_id)
        # one for all: they were submitted together
        check_own(principal, *session.scalars(select(Run).where(Run.sweep_id == sweep_id).limit(1)))
        if "name" in patch.model_fields_set:
            sweep.name = patch.name
    return show(sweep_id, database, settings)


@router.post("/{sweep_id}/cancel", response_model=SweepAnswer)
def cancel(sweep_id: SweepId, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep) -> Any:
    """Stop every run of a sweep that waits or trains, as `POST /api/runs/{id}/cancel` does; the others stay as they are."""
    with database.write() as session:
        find_sweep(session, sweep_id)
        check_own(principal, *session.scalars(select(Run).where(Run.sweep_id == sweep_id, Run.status.in_(("queued", "running")))))
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
    """Every run of the sweep in a row: settings, status, final metrics, where it diverged; non-finite numbers as what they are.

    `group_by` names columns, separated by commas: then a row is a group of runs, with finite / total, stable / total and, over
    the finite ones, median, quartiles, minimum, maximum, mean and standard deviation of each metric. `columns` names those
    wanted, in their order. Markdown and LaTeX have six digits and leave out `status_reason` and columns without a value, unless
    `columns` names them.
    """
    with database.read() as session:
        made = run_table(session, find_sweep(session, sweep_id))
    made = _asked(made, _names(group_by), _names(columns), short=format in FOR_PEOPLE)
    if format == "json":
        return json_response(dumps(json_safe(_answer(made))))
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
    """What became of the runs along two of the things the sweep varies: maps down, learning rates across unless told otherwise.

    Each cell has finite / total, stable / total and, over its finite runs, the median of the final loss with quartiles.
    """
    with database.read() as session:
        made = asked_grid(session, find_sweep(session, sweep_id), rows, columns)
    if format == "json":
        return json_response(dumps(json_safe(grid_answer(made))))
    media, ending, write = FILES[format]
    headers = {"Content-Disposition": f'attachment; filename="sweep-{sweep_id}-grid.{ending}"'}
    return Response(write(grid_table(made)), media_type=media, headers=headers)


def asked_grid(session: Session, sweep: Sweep, rows: str | None, columns: str | None) -> Grid:
    """Raises Invalid for what the sweep does not vary."""
    try:
        return sweep_grid(session, sweep, rows or None, columns or None)
    except ValueError as error:
        given, _, allowed = str(error).partition("; allowed are ")
        raise Invalid(given, field=given.partition(" ")[0], allowed=allowed) from None


def _asked(made: Table, group_by: list[str], names: list[str], *, short: bool) -> Table:
    """Raises Invalid for a name that is no column."""
    try:
        made = grouped(made, group_by) if group_by else made
        if names:
            return selected(made, names)
    except ValueError as error:
        given, _, allowed = str(error).partition("; allowed are ")
        raise Invalid(given, field=given.partition(" ")[0], allowed=allowed) from None
    return without_empty(selected(made, [name for name in made.names if name != "status_reason"])) if short else made


def _answer(made: Table) -> dict[str, Any]:
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

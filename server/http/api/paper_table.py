"""Tables for papers: a metric of groups of runs, of a sweep or of any runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from server.compare import paper_formats
from server.compare.claims import claims_json
from server.compare.comparison import default_groups
from server.compare.paper_table import PaperTable, Statistic, cell_json, metric_title, paper_table, row_titles
from server.errors import Invalid
from server.http.api.compare import ONE_OF, CompareQuery, compared_runs
from server.http.api.deps import DatabaseDep, PrincipalDep
from server.http.api.sweeps import FILES, TABLES
from server.http.schemas.compare import EXAMPLE_CLAIM, EXAMPLE_SPREAD, ClaimAnswer
from server.http.schemas.runs import MAX_ID, Answer
from server.http.schemas.sweeps import TableFormat
from server.search.filter_syntax import MAX_LENGTH
from server.series.encoding import dumps, json_response
from stablessm_core.telemetry.nonfinite import json_safe

router = APIRouter(prefix="/api/compare", tags=["compare"])
WRITERS = {
    "latex": paper_formats.paper_latex,
    "markdown": paper_formats.paper_markdown,
    "csv": paper_formats.paper_csv,
    "parquet": paper_formats.paper_parquet,
}
EXAMPLE: dict[str, Any] = {
    "rows": ["model.reparameterization.name"],
    "row_titles": ["map"],
    "across": None,
    "heads": [{"metric": "eval_accuracy", "title": "accuracy", "value": None}],
    "keys": [["best"]],
    "cells": [[{"finite": 9, "ended": 12, "open": 0, **EXAMPLE_SPREAD, "text": "0.200 ± 0.140 (9/12)"}]],
    "statuses": {"diverged": 3, "finished": 9},
    "claims": [EXAMPLE_CLAIM],
    "finite": 9,
    "lost": 3,
    "open": 0,
    "total": 12,
}


class PaperTableQuery(BaseModel):
    """The runs, and what the table shows. Exactly one of `runs`, `sweep` and `q` must be set."""

    runs: str | None = Field(None, max_length=4000, description="Run numbers separated by commas.")
    sweep: int | None = Field(None, ge=1, le=MAX_ID)
    q: str | None = Field(None, max_length=MAX_LENGTH, description="A filter as in the list of runs.")
    metric: str = Field("train_loss", max_length=500, description="Metrics separated by commas, such as `eval_accuracy`.")
    rows: str | None = Field(
        None, max_length=500, description="Settings of the rows, separated by commas; by default layers or maps. `none`: one row."
    )
    across: str | None = Field(None, max_length=200, description="A setting whose values become columns.")
    statistic: Statistic = Field("median", description="`median` with quartiles, or `mean` with standard deviation.")
    digits: int = Field(3, ge=1, le=10, description="Significant digits of the numbers in Markdown and LaTeX.")
    format: TableFormat = "json"


class PaperHead(Answer):
    metric: str
    title: str
    value: Any = Field(None, description="Value of the setting `across`.")


class PaperCell(Answer):
    finite: int = Field(description="Runs in the statistics: finished, and the metric is finite.")
    ended: int
    open: int
    median: float | None
    q25: float | None
    q75: float | None
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    text: str = Field(description="The cell as Markdown shows it.")


class PaperTableAnswer(Answer):
    """A table for a paper. `cells[i][j]` belongs to the row `keys[i]` and the column `heads[j]`."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    rows: list[str]
    row_titles: list[str]
    across: str | None
    heads: list[PaperHead]
    keys: list[list[Any]]
    cells: list[list[PaperCell]]
    statuses: dict[str, int]
    claims: list[ClaimAnswer] = Field(description="The best row compared with the others, as in `GET /api/compare`.")
    finite: int
    lost: int
    open: int
    total: int


@router.get("/table", response_model=PaperTableAnswer, responses=TABLES)
def table(database: DatabaseDep, principal: PrincipalDep, query: Annotated[PaperTableQuery, Query()]) -> Response:
    """A table for a paper: one row per map, layer or other setting, one column per metric or per value of `across`.

    Every cell has finite / ended runs, and all formats but CSV and Parquet say which row does better (`claims`).
    Metrics are the numbers of the result (`train_loss`, `eval_loss`, `eval_accuracy`, …), the best recorded value
    (`best_train_loss`, `best_eval_loss`, `best_eval_accuracy`), `step`, `duration_seconds` and the
    extremes of a run (`largest_ratio`, `nearest_distance`, …). Markdown and LaTeX have text cells, CSV and Parquet the exact
    numbers.
    """
    chosen = CompareQuery(runs=query.runs, sweep=query.sweep, q=query.q)
    with database.read() as session:
        runs = compared_runs(session, chosen, principal)
        if not runs:
            raise Invalid("no run matches, so there is no table", field=chosen.given[0], allowed=ONE_OF)
        rows = "" if query.rows == "none" else query.rows or default_groups(runs)
        try:
            made = paper_table(
                session, runs, rows=_names(rows), across=(query.across or "").strip() or None, metrics=_names(query.metric)
            )
        except ValueError as error:
            given, _, allowed = str(error).partition("; allowed: ")
            raise Invalid(given, field=given.partition(" ")[0], allowed=allowed or None) from None
    if query.format == "json":
        return json_response(dumps(json_safe(_json(made, query.statistic, query.digits))))
    media, ending, _ = FILES[query.format]
    name = f"sweep-{query.sweep}" if query.sweep else "runs"
    headers = {"Content-Disposition": f'attachment; filename="{name}-paper.{ending}"'}
    return Response(WRITERS[query.format](made, query.statistic, query.digits), media_type=media, headers=headers)


def _json(made: PaperTable, statistic: Literal["median", "mean"], digits: int) -> dict[str, Any]:
    return {
        "rows": list(made.rows),
        "row_titles": row_titles(made),
        "across": made.across,
        "heads": [{"metric": h.metric, "title": metric_title(h.metric), "value": h.value} for h in made.heads],
        "keys": [list(key) for key in made.keys],
        "cells": [
            [cell_json(cell) | {"text": paper_formats.cell_text(cell, statistic, digits)} for cell in line] for line in made.cells
        ],
        "statuses": dict(made.statuses),
        "claims": claims_json(made.claims),
        **{name: getattr(made.of, name) for name in ("finite", "lost", "open", "total")},
    }


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]

"""The charts of the pages, for programs too: their definitions, and each with its numbers in it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from server.http.api.alerts import run_alerts
from server.http.api.compare import PageQuery, compare_runs, compared_runs, run_numbers
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.records import Record, find_record, rows_of
from server.http.api.series import (
    Eigenvalues,
    MaxPoints,
    Step,
    check_stretch,
    columns_of,
    find_layout,
    parse_eigenvalues,
    read_one,
)  # fmt: skip
from server.http.api.sweeps import Axis, asked_grid, find_sweep
from server.http.api.theory import Theory, theory_answer
from server.http.figure_files import Format, Paper, Pixels, Scale, figure_answer, known_chart
from server.http.schemas.runs import RunId
from server.http.schemas.series import EXAMPLE_TYPED
from server.http.schemas.sweeps import SweepId
from server.runs.compare_curves import CURVE_POINTS, MAX_RATIO, ranges, read_curves
from server.runs.comparison import usual_groups, usually_shown
from server.runs.sweep_grid import grid_answer
from stablessm_core.telemetry.series import TRAIN_LOSS
from web.binding import bind, eigenvalue_items
from web.compared import compared_figure, range_items, shown_runs
from web.figures import CHARTS, catalogue, needed_by, spec
from web.palette import COLORS
from web.records import bounded
from web.swept import swept_figure

router = APIRouter(prefix="/api", tags=["figures"])

OF_A_RUN = tuple(name for name, chart in CHARTS.items() if chart.scope in ("run", "layer"))
OF_SEVERAL = {"compare_loss": TRAIN_LOSS, "compare_max_ratio": MAX_RATIO, "compare_ranges": MAX_RATIO}
OF_A_SWEEP = ("sweep_final_loss",)
OF_THEORY = tuple(name for name, chart in CHARTS.items() if chart.scope == "theory")
EXAMPLE = {"data": [{"type": "scatter", "x": EXAMPLE_TYPED, "y": EXAMPLE_TYPED}], "layout": {"yaxis": {"type": "log"}}}
FIGURE: dict[str, Any] = {
    "response_class": JSONResponse,
    "responses": {200: {"content": {"application/json": {"example": EXAMPLE}}, "description": "A Plotly figure."}},
}


class ComparedFigure(PageQuery, Paper):
    """What the comparison's page shows, as its address says it."""


class TheoryFigure(Theory, Paper):
    """What the theory page shows, as its address says it."""


@router.get("/figures")
def definitions() -> dict[str, Any]:
    """Every chart once: title, meaning, scope, the series it shows, and the Plotly figure without data."""
    return {"figures": catalogue()}


@router.get("/runs/{run_id}/figures/{chart}", **FIGURE)
def figure(
    run_id: RunId,
    chart: str,
    database: DatabaseDep,
    layer: Record = "0",
    max_points: MaxPoints = 1000,
    eigenvalues: Eigenvalues = None,
    from_step: Step = None,
    to_step: Step = None,
    y: Scale = None,
    width: Pixels = None,
    height: Pixels = None,
    format: Format = "json",
) -> Response:
    """One chart of this run with its numbers as typed arrays, as the page shows it, at a size in pixels if that is given."""
    check_stretch(from_step, to_step)
    definition = spec(known_chart(chart, OF_A_RUN, "a run"))
    fixed = "scaleanchor" in definition["layout"]["yaxis"] or any(trace["type"] == "heatmap" for trace in definition["data"])
    if y and not fixed:
        definition = {**definition, "layout": with_scale(definition["layout"], y)}
    names = [name.replace("{layer}", layer) for name in needed_by(chart)]
    with database.read() as session:
        known = find_layout(session, run_id)
        record = find_record(session, known, layer)
        data = {
            name: columns_of(read_one(session, known, name, from_step, to_step, max_points))
            for name in names
            if name in known.series
        }
        alerts = run_alerts(session, run_id)["alerts"]
    count = record.eigenvalues or max((row.width for row in rows_of(known, layer)), default=1)
    items = None if eigenvalues is None else eigenvalue_items(parse_eigenvalues(eigenvalues, count))
    drawn = bind(
        definition, data, layer=layer, items=items, alerts=alerts, colors=COLORS, eigenvalues=count, bounded=bounded(vars(record))
    )
    return figure_answer(drawn, chart, of=f"run {run_id}", name=f"run-{run_id}", format=format, width=width, height=height)


@router.get("/compare/figures/{chart}", **FIGURE)
def compared(
    chart: str, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, asked: Annotated[ComparedFigure, Query()]
) -> Response:
    """One chart of the comparison of these runs, as its page shows it: lines of runs, or bands of groups."""
    known_chart(chart, OF_SEVERAL, "a comparison")
    with database.read() as session:
        runs = compared_runs(session, asked, principal)
        if asked.group_by is None:  # an empty one asks for no groups
            asked.group_by = usual_groups(runs)
        answer = compare_runs(session, runs, asked, settings.lease_seconds, curves=False)
        read = read_curves(session, runs, CURVE_POINTS, (OF_SEVERAL[chart],))
    if chart == "compare_ranges":
        drawn = bind(spec(chart), {}, items=range_items(ranges(read)), colors=COLORS)
    else:
        curves = {one.run_id: columns_of(one.curves[OF_SEVERAL[chart]]) for one in read if OF_SEVERAL[chart] in one.curves}
        if chart == "compare_max_ratio":  # its smallest goes over eigenvalues too; what is drawn is the largest
            curves = {key: {**columns, "min": columns["max"]} for key, columns in curves.items()}
        groups = (asked.show or usually_shown(answer["runs"], answer["groups"])) == "groups"
        named = run_numbers((asked.on if groups else asked.off) or "")
        lines = [run.id for run in runs if (run.id in named) == groups]
        between = None if asked.first is None or asked.last is None or asked.last <= asked.first else (asked.first, asked.last)
        drawn = compared_figure(
            spec(chart), shown_runs(answer), curves, lines=lines, groups=groups, x=asked.x, y=asked.y, between=between
        )
    return figure_answer(
        drawn, chart, of=f"{len(runs)} runs", name="compare", format=asked.format, width=asked.width, height=asked.height
    )


@router.get("/sweeps/{sweep_id}/figures/{chart}", **FIGURE)
def swept(
    sweep_id: SweepId,
    chart: str,
    database: DatabaseDep,
    rows: Axis = None,
    columns: Axis = None,
    width: Pixels = None,
    height: Pixels = None,
    format: Format = "json",
) -> Response:
    """The chart of a sweep: a line for each value of the rows, over what the columns vary."""
    known_chart(chart, OF_A_SWEEP, "a sweep")
    with database.read() as session:
        grid = grid_answer(asked_grid(session, find_sweep(session, sweep_id), rows, columns))
    drawn = swept_figure(spec(chart), grid)
    return figure_answer(
        drawn, chart, of=f"sweep {sweep_id}", name=f"sweep-{sweep_id}", format=format, width=width, height=height
    )


@router.get("/theory/figures/{chart}", **FIGURE)
def of_theory(chart: str, database: DatabaseDep, asked: Annotated[TheoryFigure, Query()]) -> Response:
    """One chart of the theory page."""
    known_chart(chart, OF_THEORY, "the theory page")
    with database.read() as session:
        answer = theory_answer(session, asked, chart)
    drawn = answer["figures"][chart]
    drawn["layout"]["showlegend"] = True  # the page has one for all its charts
    of = f"theory, {answer['label'] or answer['time'] + ' time'}"
    name = f"run-{answer['run']}" if answer["run"] else "theory"
    return figure_answer(drawn, chart, of=of, name=name, format=asked.format, width=asked.width, height=asked.height)


def with_scale(layout: dict[str, Any], y: Literal["log", "linear"]) -> dict[str, Any]:
    """The layout with this vertical axis; a range that was made for another says nothing of it."""
    axis = {name: value for name, value in layout["yaxis"].items() if name != "range" or layout["yaxis"].get("type") == y}
    return {**layout, "yaxis": {**axis, "type": y}}

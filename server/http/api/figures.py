"""The charts of the pages, for use by programs: all definitions, and each chart with its data."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from server.compare.compare_curves import CURVE_POINTS, CURVES, MAX_RATIO, ranges_json, read_curves
from server.compare.comparison import default_groups, default_view, drawn_runs
from server.compare.sweep_grid import grid_json
from server.errors import Invalid
from server.http.api.alerts import run_alerts_json
from server.http.api.compare import PageQuery, compared_runs, comparison_json, metric_curves, run_numbers
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
from server.http.api.sweeps import Axis, find_sweep, requested_grid
from server.http.api.theory import Theory, theory_json
from server.http.figure_files import Paper, PaperDep, Scale, check_chart, figure_answer
from server.http.schemas.runs import RunId
from server.http.schemas.series import EXAMPLE_TYPED
from server.http.schemas.sweeps import SweepId
from stablessm_core.telemetry.limits import MAX_NAME
from stablessm_core.telemetry.series import TRAIN_LOSS
from web.binding import bind, eigenvalue_items
from web.charts import CHARTS
from web.compared import compared_figure, plain, range_items, shown_runs
from web.figures import catalogue, needed_by, spec
from web.palette import COLORS
from web.picture.sizes import FORMATS
from web.records import bounded
from web.swept import swept_figure

router = APIRouter(prefix="/api", tags=["figures"])

METRIC = "metric"
OF_A_RUN = tuple(name for name, chart in CHARTS.items() if chart.scope in ("run", "layer", METRIC))
OF_SEVERAL = {"compare_loss": TRAIN_LOSS, "compare_max_ratio": MAX_RATIO, "compare_ranges": MAX_RATIO}
OF_A_SWEEP = ("sweep_final_loss",)
OF_THEORY = tuple(name for name, chart in CHARTS.items() if chart.scope == "theory")
EXAMPLE = {"data": [{"type": "scatter", "x": EXAMPLE_TYPED, "y": EXAMPLE_TYPED}], "layout": {"yaxis": {"type": "log"}}}
FILES = ("text/html", *FORMATS.values())
FIGURE: dict[str, Any] = {
    "response_class": JSONResponse,
    "responses": {
        200: {
            "content": {
                "application/json": {"example": EXAMPLE},
                **{media: {"schema": {"type": "string", "format": "binary"}} for media in FILES},
            },
            "description": "A Plotly figure, or a file.",
        }
    },
}


class ComparedFigure(PageQuery, Paper):
    """The parameters in the URL of the comparison page, and the size and format of the figure."""


class TheoryFigure(Theory, Paper):
    """The parameters in the URL of the theory page, and the size and format of the figure."""


@router.get("/figures")
def definitions() -> dict[str, Any]:
    """Every chart: its title, meaning, scope and series, and its Plotly figure without data."""
    return {"figures": catalogue()}


@router.get("/runs/{run_id}/figures/{chart}", **FIGURE)
def figure(
    run_id: RunId,
    chart: str,
    database: DatabaseDep,
    paper: PaperDep,
    layer: Record = "0",
    max_points: MaxPoints = 1000,
    eigenvalues: Eigenvalues = None,
    from_step: Step = None,
    to_step: Step = None,
    y: Scale = None,
    metric: Annotated[str | None, Query(max_length=MAX_NAME, description="The scalar that the chart `metric` shows.")] = None,
) -> Response:
    """One chart of this run, as the run's page shows it, with its data as typed arrays."""
    check_stretch(from_step, to_step)
    definition = spec(check_chart(chart, OF_A_RUN, "a run"))
    if chart == METRIC:
        if not metric:
            raise Invalid("chart 'metric' needs a metric", field="metric", allowed="the name of a scalar of this run")
        definition = of_metric(definition, metric)
    fixed = "scaleanchor" in definition["layout"]["yaxis"] or any(trace["type"] == "heatmap" for trace in definition["data"])
    if y and not fixed:
        definition = {**definition, "layout": with_scale(definition["layout"], y)}
    names = [metric] if metric and chart == METRIC else [name.replace("{layer}", layer) for name in needed_by(chart)]
    with database.read() as session:
        known = find_layout(session, run_id)
        record = find_record(session, known, layer)
        data = {
            name: columns_of(read_one(session, known, name, from_step, to_step, max_points))
            for name in names
            if name in known.series
        }
        alerts = run_alerts_json(session, run_id)["alerts"]
    count = record.eigenvalues or max((row.width for row in rows_of(known, layer)), default=1)
    items = None if eigenvalues is None else eigenvalue_items(parse_eigenvalues(eigenvalues, count))
    drawn = bind(
        definition, data, layer=layer, items=items, alerts=alerts, colors=COLORS, eigenvalues=count, bounded=bounded(vars(record))
    )
    return figure_answer(drawn, chart, of=f"run {run_id}", name=f"run-{run_id}", paper=paper)


def of_metric(definition: dict[str, Any], name: str) -> dict[str, Any]:
    """The figure of any metric as the figure of this metric."""
    traces = [{**trace, "meta": {**trace["meta"], "series": name}} for trace in definition["data"]]
    layout = {**definition["layout"], "meta": {"chart": METRIC, "alerts": [name]}}
    return {"data": traces, "layout": {**layout, "yaxis": {**layout["yaxis"], "title": {"text": plain(name), "standoff": 8}}}}


@router.get("/compare/figures/{chart}", **FIGURE)
def compared(
    chart: str, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, asked: Annotated[ComparedFigure, Query()]
) -> Response:
    """One chart of a comparison, as the comparison page shows it: one line per run, or one band per group."""
    check_chart(chart, OF_SEVERAL, "a comparison")
    with database.read() as session:
        runs = compared_runs(session, asked, principal)
        if asked.group_by is None:  # an empty value requests no groups
            asked.group_by = default_groups(runs)
        answer = comparison_json(session, runs, asked, settings.lease_seconds, curves=False, thin=True)
        drawn_of = drawn_runs(runs)
        metric = (asked.metric or TRAIN_LOSS) if chart == "compare_loss" else OF_SEVERAL[chart]
        if metric in CURVES:
            read = read_curves(session, drawn_of, CURVE_POINTS, (metric,))
            found = {one.run_id: one.curves[metric] for one in read if metric in one.curves}
        else:
            read, found = [], metric_curves(session, drawn_of, metric, CURVE_POINTS)
    if chart == "compare_ranges":
        drawn = bind(spec(chart), {}, items=range_items(ranges_json(read)), colors=COLORS)
    else:
        curves = {run_id: columns_of(data) for run_id, data in found.items()}
        if chart == "compare_max_ratio":  # the minimum is also taken over eigenvalues, but the chart shows only the largest ratio
            curves = {key: {**columns, "min": columns["max"]} for key, columns in curves.items()}
        groups = (asked.show or default_view(answer["runs"], answer["groups"])) == "groups"
        named = run_numbers((asked.on if groups else asked.off) or "")
        lines = [run.id for run in drawn_of if (run.id in named) == groups]
        between = None if asked.first is None or asked.last is None or asked.last <= asked.first else (asked.first, asked.last)
        drawn = compared_figure(
            spec(chart), shown_runs(answer), curves, lines=lines, groups=groups, x=asked.x, y=asked.y, between=between,
            smooth=asked.smooth, metric="" if metric in CURVES else metric,
        )  # fmt: skip
    of = f"{len(drawn_of)} of {len(runs)} runs" if len(drawn_of) < len(runs) else f"{len(runs)} runs"
    return figure_answer(drawn, chart, of=of, name="compare", paper=asked)


@router.get("/sweeps/{sweep_id}/figures/{chart}", **FIGURE)
def swept(
    sweep_id: SweepId,
    chart: str,
    database: DatabaseDep,
    paper: PaperDep,
    rows: Axis = None,
    columns: Axis = None,
) -> Response:
    """The chart of a sweep: one line per value of the row setting, over the values of the column setting."""
    check_chart(chart, OF_A_SWEEP, "a sweep")
    with database.read() as session:
        grid = grid_json(requested_grid(session, find_sweep(session, sweep_id), rows, columns))
    drawn = swept_figure(spec(chart), grid)
    return figure_answer(drawn, chart, of=f"sweep {sweep_id}", name=f"sweep-{sweep_id}", paper=paper)


@router.get("/theory/figures/{chart}", **FIGURE)
def of_theory(chart: str, database: DatabaseDep, asked: Annotated[TheoryFigure, Query()]) -> Response:
    """One chart of the theory page."""
    check_chart(chart, OF_THEORY, "the theory page")
    with database.read() as session:
        answer = theory_json(session, asked, chart)
    drawn = answer["figures"][chart]
    drawn["layout"]["showlegend"] = True  # on the page, all charts share one legend
    of = f"theory, {answer['label'] or answer['time'] + ' time'}"
    name = f"run-{answer['run']}" if answer["run"] else "theory"
    return figure_answer(drawn, chart, of=of, name=name, paper=asked)


def with_scale(layout: dict[str, Any], y: Literal["log", "linear"]) -> dict[str, Any]:
    """The layout with this scale of the vertical axis. A range that was set for the other scale is removed."""
    axis = {name: value for name, value in layout["yaxis"].items() if name != "range" or layout["yaxis"].get("type") == y}
    return {**layout, "yaxis": {**axis, "type": y}}

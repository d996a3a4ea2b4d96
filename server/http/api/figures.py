"""The charts of the pages, for programs too: their definitions, and one with a run's numbers in it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from server.errors import Invalid, NotFound
from server.http.api.alerts import run_alerts
from server.http.api.deps import DatabaseDep
from server.http.api.runs import find_run
from server.http.api.series import Eigenvalues, MaxPoints, Step, check_stretch, columns_of, parse_eigenvalues, read_one
from server.http.schemas.runs import RunId
from server.http.schemas.series import EXAMPLE_TYPED
from server.series.encoding import dumps
from server.series.reading import Layout
from stablessm_core.nonfinite import json_safe
from web.binding import bind, eigenvalue_items
from web.figures import CHARTS, catalogue, spec
from web.palette import COLORS
from web.standalone import html_file, sized

router = APIRouter(prefix="/api", tags=["figures"])

WIDTH, HEIGHT = 900, 420
Pixels = Annotated[int | None, Query(ge=100, le=4000)]
OF_A_RUN = tuple(name for name, chart in CHARTS.items() if chart.scope in ("run", "layer"))
EXAMPLE = {"data": [{"type": "scatter", "x": EXAMPLE_TYPED, "y": EXAMPLE_TYPED}], "layout": {"yaxis": {"type": "log"}}}


@router.get("/figures")
def definitions() -> dict[str, Any]:
    """Every chart once: title, meaning, scope, the series it shows, and the Plotly figure without data."""
    return {"figures": catalogue()}


@router.get(
    "/runs/{run_id}/figures/{chart}",
    response_class=JSONResponse,
    responses={200: {"content": {"application/json": {"example": EXAMPLE}}, "description": "A Plotly figure."}},
)
def figure(
    run_id: RunId,
    chart: str,
    database: DatabaseDep,
    layer: Annotated[int, Query(ge=0, le=127)] = 0,
    max_points: MaxPoints = 1000,
    eigenvalues: Eigenvalues = None,
    from_step: Step = None,
    to_step: Step = None,
    width: Pixels = None,
    height: Pixels = None,
    format: Annotated[Literal["json", "html"], Query(description="html: a file that needs nothing else.")] = "json",
) -> Response:
    """One chart of this run with its numbers as typed arrays, as the page shows it, at a size in pixels if that is given."""
    check_stretch(from_step, to_step)
    if chart not in OF_A_RUN:
        raise NotFound(f"there is no chart {chart[:80]!r} of a run", field="chart", allowed=", ".join(OF_A_RUN))
    definition = spec(chart)
    names = {
        trace["meta"]["series"].replace("{layer}", str(layer)) for trace in definition["data"] if trace["meta"].get("series")
    }
    with database.read() as session:
        run = find_run(session, run_id)
        layers = run.config["model"]["n_layers"]
        if layer >= layers:
            raise Invalid(f"run {run_id} has {layers} layers", field="layer", allowed=f"0 to {layers - 1}")
        known = Layout(session, run_id)
        data = {
            name: columns_of(read_one(session, known, name, from_step, to_step, max_points))
            for name in names
            if name in known.series
        }
        alerts = run_alerts(session, run_id)["alerts"]
    items = None
    if eigenvalues is not None:
        items = eigenvalue_items(parse_eigenvalues(eigenvalues, run.config["model"]["d_state"]))
    drawn = bind(definition, data, layer=layer, items=items, alerts=alerts, colors=COLORS)
    if width or height or format == "html":
        drawn = sized(drawn, width or WIDTH, height or HEIGHT)
    text = dumps(json_safe(drawn))
    if format == "json":
        return Response(text, media_type="application/json")
    headers = {"Content-Disposition": f'attachment; filename="run-{run_id}-{chart}.html"'}
    return Response(html_file(text.decode(), f"run {run_id}: {CHARTS[chart].title}"), media_type="text/html", headers=headers)

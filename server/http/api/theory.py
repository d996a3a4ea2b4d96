"""What the theory says of the maps, for the constants asked for, and where a stored run's weights lie on its curves."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, Field
from sqlalchemy.orm import Session

from server.errors import Invalid
from server.http.api.deps import DatabaseDep
from server.http.api.series import find_layout, read_one, run_catalogue
from server.http.schemas.runs import MAX_ID
from server.http.schemas.series import EXAMPLE_TYPED
from server.http.theory import Weights, theory_figures
from server.series.encoding import dumps
from server.series.reading import Layout
from stablessm_core.forms import NO_MAP, spread
from stablessm_core.maps import MAPS
from stablessm_core.nonfinite import json_safe
from stablessm_core.telemetry.series import layer_of, source_group

router = APIRouter(prefix="/api", tags=["figures"])

LEAST_B = max(form.least_b for map_ in MAPS.values() for form in map_.forms.values())
Time = Literal["discrete", "continuous"]
EXAMPLE = {
    "time": "discrete", "a": 1.0, "b": 0.5, "run": 7, "layer": 0, "step": 300, "label": "run 7, layer 0", "map": "best",
    "figures": {"theory_map": {"data": [{"type": "scatter", "x": EXAMPLE_TYPED, "y": EXAMPLE_TYPED}], "layout": {}}},
}  # fmt: skip


def _none(given: Any) -> Any:
    return None if given == "" else given  # of a form's field that was left empty


Number = Annotated[Annotated[float, Field(ge=1e-3, le=1e3)] | None, BeforeValidator(_none)]
Count = Annotated[Annotated[int, Field(ge=1, le=MAX_ID)] | None, BeforeValidator(_none)]


class Theory(BaseModel):
    """What is asked for. A run brings the time and the constants of its map, where none are given."""

    time: Time | None = None
    a: Number = Field(None, description="Constant of best, 0.001 to 1,000.")
    b: Number = Field(None, description="Constant of best, 0.001 to 1,000; at least 0.5 in discrete time.")
    run: Count = Field(None, description="A stored run, whose weights are shown as points.")
    layer: Annotated[int, Field(ge=0, le=127)] = 0
    step: Count = Field(None, description="Its weights at this step; those of its last without.")
    maps: str | None = Field(None, max_length=200, description="Only the curves of these maps, separated by commas; all without.")


Asked = Annotated[Theory, Query()]


@router.get(
    "/theory",
    response_class=JSONResponse,
    responses={200: {"content": {"application/json": {"example": EXAMPLE}}, "description": "Curves, and the choice."}},
)
def theory(asked: Asked, database: DatabaseDep) -> Response:
    """Every map's curves with the constants a and b of `best`, as Plotly figures with typed arrays."""
    with database.read() as session:
        answer = theory_answer(session, asked)
    return Response(dumps(json_safe(answer)), media_type="application/json")


def theory_answer(session: Session, asked: Theory, chart: str | None = None) -> dict[str, Any]:
    """{time, a, b, run, layer, step, label, figures}, with `chart` only its figure. Raises NotFound and Invalid."""
    weights, step = (None, None) if asked.run is None else _weights(session, asked.run, asked.layer, asked.step)
    form = None if weights is None else weights.form
    time = asked.time or (form.time if form else "discrete")
    a = asked.a if asked.a is not None else form.a if form else 1.0
    b = asked.b if asked.b is not None else form.b if form else 0.5
    if b < LEAST_B and time == "discrete":
        raise Invalid(f"b is {b:g}", field="b", allowed=f">= {LEAST_B:g} in discrete time, so that no eigenvalue is below -1")
    return {
        "time": time,
        "a": a,
        "b": b,
        "run": asked.run,
        "layer": asked.layer,
        "step": step,
        "label": weights.label if weights else None,
        "map": form.map if form else None,
        "figures": theory_figures(time, a, b, weights, maps=_maps(asked.maps, time), chart=chart),
    }


def _maps(text: str | None, time: str) -> list[str] | None:
    if text is None:
        return None
    known = [name for name, map_ in MAPS.items() if time in map_.forms]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise Invalid(f"maps names {name[:80]!r}", field="maps", allowed=f"of {', '.join(known)}, in {time} time")
    return names


def _weights(session: Session, run_id: int, layer: int, step: int | None) -> tuple[Weights, int]:
    layout = find_layout(session, run_id)
    group = f"ssm/{layer}"
    form = layout.forms.get(group)
    if form is None or form.map in NO_MAP:
        mapped = (name for name, known in layout.forms.items() if known.map not in NO_MAP and name == source_group(name))
        known = sorted(number for name in mapped if (number := layer_of(name)) is not None)
        allowed = (
            "one of the layers " + ", ".join(map(str, known)) if known else "a run that has recorded every weight of a layer"
        )
        raise Invalid(f"run {run_id} has no weights of every eigenvalue of layer {layer}", field="layer", allowed=allowed)
    span = {one["name"]: one for one in run_catalogue(session, run_id)["series"]}[f"{group}/weight"]
    if not span["points"]:
        raise Invalid(f"run {run_id} has not recorded a step yet", field="run", allowed="a run with recorded steps")
    at = span["last_step"] if step is None else step
    shown, first = (_recorded(session, layout, group, one) for one in (at, span["first_step"]))
    if shown is None or first is None:
        allowed = f"{span['first_step']} to {span['last_step']}"
        raise Invalid(f"run {run_id} has not recorded step {at}", field="step", allowed=allowed)
    return Weights(f"run {run_id}, layer {layer}", form, shown, first), at


def _recorded(session: Session, layout: Layout, group: str, step: int) -> dict[str, Any] | None:
    """The layer's inputs at this step; None where it was not recorded."""
    found = {kind: read_one(session, layout, f"{group}/{kind}", step, step, 1) for kind in layout.forms[group].inputs}
    rows = {kind: data.value[-1] for kind, data in found.items() if data.value is not None and len(data.step)}
    return spread(rows, layout.find(f"{group}/weight").width) if len(rows) == len(found) else None

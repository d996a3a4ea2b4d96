"""What the theory says of the maps, for the constants asked for, and where a stored run's weights lie on its curves."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, Field
from sqlalchemy.orm import Session

from server.errors import Invalid
from server.http.api.deps import DatabaseDep
from server.http.api.records import SAID, find_record, run_records
from server.http.api.series import find_layout, read_one, run_catalogue
from server.http.schemas.runs import MAX_ID
from server.http.schemas.series import EXAMPLE_TYPED
from server.http.theory import Weights, theory_figures
from server.series.encoding import dumps
from server.series.reading import Layout
from stablessm_core.forms import NO_MAP, Form, spread
from stablessm_core.maps import MAPS
from stablessm_core.nonfinite import json_safe
from stablessm_core.telemetry.series import layer_group, layer_of

router = APIRouter(prefix="/api", tags=["figures"])

LEAST_B = max(form.least_b for map_ in MAPS.values() for form in map_.forms.values())
Time = Literal["discrete", "continuous"]
EXAMPLE = {
    "time": "discrete", "a": 1.0, "b": 0.5, "run": 7, "layer": 0, "record": "0", "step": 300, "label": "run 7, layer 0",
    "map": "best",
    "figures": {"theory_map": {"data": [{"type": "scatter", "x": EXAMPLE_TYPED, "y": EXAMPLE_TYPED}], "layout": {}}},
}  # fmt: skip


def _none(given: Any) -> Any:
    return None if given == "" else given  # of a form's field that was left empty


def _zero(given: Any) -> Any:
    return "0" if given == "" else given


Number = Annotated[Annotated[float, Field(ge=1e-3, le=1e3)] | None, BeforeValidator(_none)]
Count = Annotated[Annotated[int, Field(ge=1, le=MAX_ID)] | None, BeforeValidator(_none)]


class Theory(BaseModel):
    """What is asked for. A run brings the time and the constants of its map, where none are given."""

    time: Time | None = None
    a: Number = Field(None, description="Constant of best, 0.001 to 1,000.")
    b: Number = Field(None, description="Constant of best, 0.001 to 1,000; at least 0.5 in discrete time.")
    run: Count = Field(None, description="A stored run, whose weights are shown as points.")
    layer: Annotated[str, BeforeValidator(_zero)] = Field("0", min_length=1, max_length=100, description=SAID)
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
        "layer": layer_of(layer_group(asked.layer)),
        "record": asked.layer,
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


def _weights(session: Session, run_id: int, layer: str, step: int | None) -> tuple[Weights, int]:
    layout = find_layout(session, run_id)
    of_record = find_record(session, layout, layer)
    group = layer_group(layer)
    form = layout.forms.get(group)
    if form is None or form.map in NO_MAP:
        mapped = (r.id for r in run_records(session, layout) if _has_map(layout.forms.get(layer_group(r.id))))
        known = ", ".join(mapped)
        allowed = f"one of the layers {known}" if known else "a run that has recorded every weight of a layer with a map"
        why = f"has no weights of every eigenvalue of layer {layer}"
        if form is not None or (of_record.form or {}).get("map") in NO_MAP:
            why = f"has no map in layer {layer}: {NO_MAP[form.map if form else (of_record.form or {})['map']]}"
        raise Invalid(f"run {run_id} {why}", field="layer", allowed=allowed)
    span = {one["name"]: one for one in run_catalogue(session, run_id)["series"]}[f"{group}/weight"]
    if not span["points"]:
        raise Invalid(f"run {run_id} has not recorded a step yet", field="run", allowed="a run with recorded steps")
    at = span["last_step"] if step is None else step
    shown, first = (_recorded(session, layout, group, one) for one in (at, span["first_step"]))
    if shown is None or first is None:
        allowed = f"{span['first_step']} to {span['last_step']}"
        raise Invalid(f"run {run_id} has not recorded step {at}", field="step", allowed=allowed)
    return Weights(f"run {run_id}, layer {layer}", form, shown, first), at


def _has_map(form: Form | None) -> bool:
    return form is not None and form.map not in NO_MAP


def _recorded(session: Session, layout: Layout, group: str, step: int) -> dict[str, Any] | None:
    """The layer's inputs at this step; None where it was not recorded."""
    found = {kind: read_one(session, layout, f"{group}/{kind}", step, step, 1) for kind in layout.forms[group].inputs}
    rows = {kind: data.value[-1] for kind, data in found.items() if data.value is not None and len(data.step)}
    return spread(rows, layout.find(f"{group}/weight").width) if len(rows) == len(found) else None

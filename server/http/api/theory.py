"""The theoretical curves of the maps for given constants, with the weights of a stored run as points."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, Field
from sqlalchemy.orm import Session

from server.errors import Invalid
from server.http.api.deps import DatabaseDep
from server.http.api.records import RECORD_MEANING, find_record, run_records
from server.http.api.series import catalogue_json, find_layout, read_one
from server.http.schemas.runs import MAX_ID
from server.http.schemas.series import EXAMPLE_TYPED
from server.series.encoding import dumps
from server.series.layout import Layout
from stablessm_core.maps import MAPS
from stablessm_core.spec.suggestions import did_you_mean
from stablessm_core.telemetry.forms import NO_MAP, Form, spread
from stablessm_core.telemetry.nonfinite import json_safe
from stablessm_core.telemetry.series import layer_group, layer_of
from web.theory_figures import Weights, theory_figures

router = APIRouter(prefix="/api", tags=["figures"])

LEAST_B = max(form.least_b for map_ in MAPS.values() for form in map_.forms.values())
Time = Literal["discrete", "continuous"]
EXAMPLE = {
    "time": "discrete", "a": 1.0, "b": 0.5, "run": 7, "layer": 0, "record": "0", "step": 300, "label": "run 7, layer 0",
    "map": "best",
    "figures": {"theory_map": {"data": [{"type": "scatter", "x": EXAMPLE_TYPED, "y": EXAMPLE_TYPED}], "layout": {}}},
}  # fmt: skip


def _none(given: Any) -> Any:
    return None if given == "" else given  # an empty form field means no value


def _zero(given: Any) -> Any:
    return "0" if given == "" else given


Number = Annotated[Annotated[float, Field(ge=1e-3, le=1e3)] | None, BeforeValidator(_none)]
Count = Annotated[Annotated[int, Field(ge=1, le=MAX_ID)] | None, BeforeValidator(_none)]


class Theory(BaseModel):
    """The parameters of the curves. The time and the constants of the map default to the values of the given run."""

    time: Time | None = None
    a: Number = Field(None, description="Constant a of the map best, 0.001 to 1,000.")
    b: Number = Field(None, description="Constant b of the map best, 0.001 to 1,000; at least 0.5 in discrete time.")
    run: Count = Field(None, description="Number of a run whose weights are drawn as points.")
    layer: Annotated[str, BeforeValidator(_zero)] = Field("0", min_length=1, max_length=100, description=RECORD_MEANING)
    step: Count = Field(None, description="The step whose weights are drawn, by default the last recorded step.")
    maps: str | None = Field(None, max_length=200, description="Maps separated by commas, by default all.")


Asked = Annotated[Theory, Query()]


@router.get(
    "/theory",
    response_class=JSONResponse,
    responses={200: {"content": {"application/json": {"example": EXAMPLE}}, "description": "The curves and their parameters."}},
)
def theory(asked: Asked, database: DatabaseDep) -> Response:
    """The curves of every map as Plotly figures with typed arrays. `a` and `b` are the constants of `best`."""
    with database.read() as session:
        answer = theory_json(session, asked)
    return Response(dumps(json_safe(answer)), media_type="application/json")


def theory_json(session: Session, asked: Theory, chart: str | None = None) -> dict[str, Any]:
    """{time, a, b, run, layer, step, label, figures}; `chart` selects one figure. Raises NotFound and Invalid."""
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
            raise Invalid(
                f"maps names {name[:80]!r}{did_you_mean(name, known)}",
                field="maps",
                allowed=f"{', '.join(known)} (in {time} time)",
            )
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
        why = f"has not recorded a weight for every eigenvalue of layer {layer}"
        if form is not None or (of_record.form or {}).get("map") in NO_MAP:
            why = f"has no map in layer {layer}: {NO_MAP[form.map if form else (of_record.form or {})['map']]}"
        raise Invalid(f"run {run_id} {why}", field="layer", allowed=allowed)
    span = {one["name"]: one for one in catalogue_json(session, run_id)["series"]}[f"{group}/weight"]
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
    """The inputs of the layer's map at this step; None if they were not recorded."""
    found = {kind: read_one(session, layout, f"{group}/{kind}", step, step, 1) for kind in layout.forms[group].inputs}
    rows = {kind: data.value[-1] for kind, data in found.items() if data.value is not None and len(data.step)}
    return spread(rows, layout.find(f"{group}/weight").width) if len(rows) == len(found) else None

"""How far each training step moves a layer's eigenvalues, split into the factors map, optimizer and gradient."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Response

from server.database.models import Run
from server.errors import Invalid, NotFound
from server.http.api.deps import DatabaseDep
from server.http.api.records import Record, find_record
from server.http.api.runs import find_run
from server.http.api.series import Eigenvalues, find_layout, parse_eigenvalues
from server.http.schemas.runs import MAX_ID, RunId
from server.http.schemas.steps import StepsAnswer
from server.series.encoding import dumps, json_response
from server.series.layout import Layout
from server.series.reading import read_series
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.boundary import overflow_distance
from stablessm_core.telemetry.forms import spread
from stablessm_core.telemetry.nonfinite import json_safe
from stablessm_core.telemetry.stability import overflow_budget, split_steps

router = APIRouter(prefix="/api/runs", tags=["series"])

MAX_STEPS, MAX_NUMBERS = 1000, 20_000  # maximum number of steps, and of steps * eigenvalues, per response
MAX_SEARCHED = 1 << 22  # maximum number of steps * eigenvalues in a search for the eigenvalues that moved most
SHOWN = 8  # number of eigenvalues that are chosen by default, because they moved most


@router.get("/{run_id}/steps", response_model=StepsAnswer)
def steps(
    run_id: RunId,
    database: DatabaseDep,
    step: Annotated[int, Query(ge=1, le=MAX_ID, description="The first step.")],
    to_step: Annotated[int | None, Query(ge=1, le=MAX_ID, description="The last step; by default the same as `step`.")] = None,
    layer: Record = "0",
    eigenvalues: Eigenvalues = None,
) -> Response:
    """The relative steps of some eigenvalues and their factors: slope of the map, gradient, learning rate, optimizer."""
    last = step if to_step is None else to_step
    if not step <= last < step + MAX_STEPS:
        raise Invalid(f"to_step is {last}", field="to_step", allowed=f"{step} to {step + MAX_STEPS - 1}")
    with database.read() as session:
        run, layout = find_run(session, run_id), find_layout(session, run_id)
        record, name = find_record(session, layout, layer), names.layer_series(layer, names.RELATIVE_STEP)
        if name not in layout.series:
            raise NotFound(
                f"run {run_id} has no relative step of layer {layer}: its weights were not recorded at every step",
                field="layer",
                allowed=", ".join(s.split("/")[1] for s in layout.series if s.endswith(names.RELATIVE_STEP)) or "none",
            )
        width = layout.series[name].width
        chosen = None if eigenvalues is None else parse_eigenvalues(eigenvalues, width)

        def read(kind: str, columns: list[int] | None) -> tuple[np.ndarray, np.ndarray]:
            full = kind if "/" in kind else names.layer_series(layer, kind)
            shared = columns is not None and layout.find(full).width != width  # several eigenvalues share a step size or gate
            data = read_series(
                session, run_id, full, from_step=step, to_step=last + 1, eigenvalues=None if shared else columns, layout=layout
            )
            values = np.asarray(data.value, np.float64)
            return data.step, spread({kind: values}, width)[kind][:, columns] if shared else values

        if chosen is None:
            if (last - step + 1) * width > MAX_SEARCHED:
                raise Invalid(
                    f"{width} eigenvalues are too many for {last - step + 1} steps", field="eigenvalues", allowed="0,3,5-9"
                )
            _, moved = read(names.RELATIVE_STEP, None)
            chosen = _most_moved(moved)
        if (last - step + 1) * len(chosen) > MAX_NUMBERS:
            raise Invalid("the answer would be too long", field="eigenvalues", allowed=f"steps * eigenvalues <= {MAX_NUMBERS:,}")
        parts = {kind: read(kind, chosen) for kind in _needed(layout, name)}
        at = parts["weight"][0]
        rates = read(names.LR, None) if names.LR in layout.series else (at, np.full((len(at), 1), np.nan))
        found = _split(run, layout, layer, parts, rates)
        source = {"run_id": run_id, "layer": record.layer, "record": layer}
    return json_response(dumps(json_safe(source | {"eigenvalues": chosen} | found)))


def _needed(layout: Layout, name: str) -> tuple[str, ...]:
    return ("grad_over_weight", *layout.forms[layout.series[name].group].recorded)


def _most_moved(moved: np.ndarray) -> list[int]:
    if not len(moved):
        return list(range(min(SHOWN, moved.shape[1])))
    lost = np.where(np.isnan(moved), np.inf, moved).max(axis=0)
    return sorted(np.argsort(-lost, kind="stable")[:SHOWN].tolist())


def _split(
    run: Run,
    layout: Layout,
    layer: str,
    read: dict[str, tuple[np.ndarray, np.ndarray]],
    rates: tuple[np.ndarray, np.ndarray],
) -> dict[str, Any]:
    form = layout.forms[names.derived_group(layer)]
    at = read["weight"][0]
    lr = recurrent_rate(run.config.get("optimizer", {})) * _at_steps(at, *rates)
    recorded = {kind: read[kind][1] for kind in form.recorded}
    parts: dict[str, np.ndarray] = split_steps(form, recorded, read["grad_over_weight"][1], lr) if len(at) > 1 else {}
    known = np.diff(at) == 1  # skip steps whose next step is missing because telemetry was dropped
    if parts and form.length is not None:
        rows = {kind: values[:-1].astype(np.float64) for kind, values in recorded.items()}
        parts["overflow_budget"] = overflow_budget(form.length, overflow_distance(form, rows))
    lists = {name: values[known].tolist() for name, values in parts.items()}
    return {"form": form.data, "step": at[:-1][known].tolist(), **lists}


def _at_steps(steps: np.ndarray, recorded: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values (n, 1) of a series at these steps, NaN at steps where it was not recorded."""
    found = np.full(len(steps), np.nan)
    _, own, there = np.intersect1d(steps, recorded, assume_unique=True, return_indices=True)
    found[own] = values[there, 0]
    return found


def recurrent_rate(optimizer: dict[str, Any]) -> float:
    """The learning rate of the recurrent weights divided by the recorded learning rate, from the run's optimizer
    configuration."""
    common, own = optimizer.get("lr"), optimizer.get("recurrent_lr")
    return 1.0 if own is None or not common else float(own) / float(common)

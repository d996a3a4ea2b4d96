"""The states of an unstable eigenvalue will soon overflow: its overflow budget is nearly spent, or the next step may spend it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import Field

from stablessm_core.section import Section
from stablessm_core.stability import overflow_budget, overflow_eigenvalue, predicted_distance
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Setup, Watch
from stablessm_core.telemetry.detectors.next_step import before_first, can_cross, weight_steps
from stablessm_core.telemetry.detectors.place import at_eigenvalue
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows, Values


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    if watch.setup is None or not len(rows.loss):
        return
    for layer in rows.layers:
        if layer.form is None or can_cross(layer.form):  # of the other maps no budget is ever above 0
            yield _condition(rows, layer, watch, watch.setup)


def _condition(rows: Rows, layer: LayerRows, watch: Watch, setup: Setup) -> Condition:
    distance = ahead = layer.distance.values
    steps = weight_steps(rows, layer, setup, before_first(layer, watch))
    if steps is not None and layer.form is not None and layer.recorded is not None:
        ahead = predicted_distance(layer.form, layer.recorded, steps)
    # distances rather than budgets, which would cost a logarithm each
    least = [1 - overflow_eigenvalue(setup.length, budget) for budget in (watch.threshold * setup.limit, setup.limit)]
    near = (distance <= least[0]) | (ahead <= least[1])
    # once its numbers are lost it is no warning any more
    near &= (np.isfinite(rows.loss) & np.isfinite(layer.state.values).all(axis=1))[:, None]

    def alert(row: int) -> Alert:
        worst = int(np.argmin(np.where(near[row], ahead[row], np.inf)))
        budget, then = (overflow_budget(setup.length, d[row]) for d in (distance, ahead))
        more = f"; the limit is {setup.limit:g} at length {setup.length}; |lambda_bar| is {1 - float(distance[row, worst]):.4g}"
        if ahead is not distance:
            more += f"; the next step may make the budget {then[worst]:.4g}"
        return at_eigenvalue(
            KIND,
            rows,
            row,
            layer,
            Values(np.broadcast_to(budget, distance.shape), layer.distance.at),
            worst,
            chart="boundary_distance",
            count=int(near[row].sum()),
            what="overflow budget",
            more=more,
        )

    return Condition(layer.id, near.any(axis=1), alert)


class Settings(Section):
    max_overflow_budget: float | None = Field(
        0.9,
        gt=0,
        le=1,
        description="Alert when an overflow budget reaches this share of its limit, or the next step may exceed the limit.",
    )


KIND = AlertKind(
    name="overflow_near",
    severity="critical",
    meaning="An unstable eigenvalue's overflow budget, length x ln|eigenvalue| / 88.72, is above `alerts.max_overflow_budget` of "
    "its limit, or the next step may exceed it: then the states overflow.",
    detect=detect,
    settings=Settings,
    comes_before=True,
)

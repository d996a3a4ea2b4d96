"""Detects an unstable eigenvalue whose states will soon overflow: its overflow budget is, or may soon be, near the limit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Setup, Threshold, Watch, eigenvalue_alert
from stablessm_core.telemetry.detectors.budget import at_which_gate, budget_text, size_of_eigenvalue
from stablessm_core.telemetry.detectors.next_step import before_first, may_be_outside, step_growth, weight_steps
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows, Values
from stablessm_core.telemetry.stability import overflow_budget, overflow_eigenvalue, predicted_distance


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    if watch.setup is None or not len(rows.loss):
        return
    for layer in rows.layers:
        if may_be_outside(layer):  # if no eigenvalue is or can be outside the boundary, the budget is at most 0
            yield _condition(rows, layer, watch, watch.setup)


def _condition(rows: Rows, layer: LayerRows, watch: Watch, setup: Setup) -> Condition:
    distance = ahead = layer.overflow_distance
    limit = setup.limits[layer.layer]
    steps = weight_steps(rows, layer, setup, before_first(layer, watch))
    if steps is not None and layer.form is not None and layer.recorded is not None:
        ahead = predicted_distance(layer.form, layer.recorded, steps, step_growth(rows, layer, setup))
    # compare distances instead of budgets, because computing a budget needs one logarithm per number
    least = [1 - overflow_eigenvalue(setup.length, budget) for budget in (watch.threshold * limit, limit)]
    near = (distance <= least[0]) | (ahead <= least[1])
    # no warning in a row in which the loss or a state is already NaN or infinite
    near &= (np.isfinite(rows.loss) & np.isfinite(layer.state.values).all(axis=1))[:, None]

    def alert(row: int) -> Alert:
        worst = int(np.argmin(np.where(near[row], ahead[row], np.inf)))
        now, then = (budget_text(setup.length, d[row, worst]) for d in (distance, ahead))
        what = f"overflow budget{at_which_gate(layer)} is {now} of {limit:g} at length {setup.length}"
        what += f" (|lambda_bar| is {size_of_eigenvalue(distance[row, worst])}; {_overflows_at(setup.length, limit)})"
        if ahead is not distance:
            what += f", and the next step may bring it to {then}"
        return eigenvalue_alert(
            KIND,
            rows,
            row,
            layer,
            Values(np.broadcast_to(overflow_budget(setup.length, distance[row]), distance.shape), layer.distance.at),
            worst,
            chart="boundary_distance_closest" if layer.form is not None and layer.form.channels else "boundary_distance",
            count=int(near[row].sum()),
            what=what,
        )

    return Condition(layer.id, near.any(axis=1), alert)


def _overflows_at(length: int, limit: float) -> str:
    size = overflow_eigenvalue(length, limit)
    return f"float32 overflows at {size:.4g}" if size < 1e6 else "so short a sequence needs a very large eigenvalue"


KIND = AlertKind(
    name="overflow_near",
    severity="critical",
    meaning="The overflow budget of an unstable eigenvalue, length x ln|eigenvalue| / 88.72, exceeds the share "
    "`alerts.max_overflow_budget` of its limit, or the next step may exceed the limit. Beyond the limit, states overflow.",
    detect=detect,
    threshold=Threshold(
        name="max_overflow_budget",
        default=0.9,
        gt=0,
        le=1,
        description="Alert when an overflow budget reaches this share of its limit, or the next step may exceed the limit.",
    ),
    comes_before=True,
)

"""Detects states that will soon overflow: the recorded states are near the limit, or the next step of the weights may take an
eigenvalue beyond it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stablessm_core.telemetry.boundary import overflow_distance
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Setup, Threshold, Watch, eigenvalue_alert
from stablessm_core.telemetry.detectors.budget import budget_text, size_of_eigenvalue
from stablessm_core.telemetry.detectors.measured_states import States, measured_states
from stablessm_core.telemetry.detectors.next_step import (
    at_largest_gate,
    before_first,
    carried_weights,
    computes_gates,
    gate_growth,
    may_be_outside,
    relative_step,
    step_growth,
    weight_steps,
)
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows, Values
from stablessm_core.telemetry.stability import LN_LARGEST, overflow_budget, overflow_eigenvalue, predicted_distance

# AdamW moves a weight by about the learning rate in its first steps, and later mostly by a small part of it
FIRST_STEPS, LATER = 8, 4.0  # so later, a step of the learning rate must reach this many times the limit
NOTICEABLE = 0.15  # SGD: a spike of the gradient counts if the step is at least this share of the norm of all weights
LARGE, UNUSED = 0.6, 0.5  # share of the limit; a state below UNUSED of so large a budget is bounded by other means


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    if watch.setup is None or not len(rows.loss):
        return
    for layer in rows.layers:
        crosses = may_be_outside(layer)  # if not, the budget of its eigenvalues is at most 0
        states = measured_states(layer, watch)
        if states is not None or crosses:
            yield _condition(rows, layer, watch, watch.setup, states, crosses=crosses)


def _condition(rows: Rows, layer: LayerRows, watch: Watch, setup: Setup, states: States | None, *, crosses: bool) -> Condition:
    limit = setup.limits[layer.layer]
    distance = ahead = layer.overflow_distance
    near = np.zeros(distance.shape, bool)  # the eigenvalues that the next step may take beyond the limit
    if crosses:
        distance, ahead, carried = _distances(rows, layer, watch, setup)
        near = _may_overflow(rows, distance, ahead, carried, setup, limit)
        if states is not None and near.any():  # rare, and a budget needs one logarithm per number
            near &= ~_bounded_otherwise(layer, distance, states, setup, limit)
        if states is None:
            near |= distance <= 1 - overflow_eigenvalue(setup.length, watch.threshold * limit)
    # no warning in a row in which the loss or a state is already NaN or infinite
    finite = np.isfinite(rows.loss) & np.isfinite(layer.state.values).all(axis=1)
    near &= finite[:, None]
    by_state = np.zeros(len(finite), bool) if states is None else states.near(limit, watch.threshold) & finite

    def alert(row: int) -> Alert:
        if by_state[row] and states is not None:
            return _alert_of_state(rows, row, layer, states, limit)
        worst = int(np.argmin(np.where(near[row], ahead[row], np.inf)))
        now, then = (budget_text(setup.length, d[row, worst]) for d in (distance, ahead))
        what = f"overflow budget{_at_which_gate(layer)} is {now} of {limit:g} at length {setup.length}"
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

    return Condition(layer.id, near.any(axis=1) | by_state, alert)


def _distances(rows: Rows, layer: LayerRows, watch: Watch, setup: Setup) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distance of each eigenvalue at its largest gate, the smallest distance after the next step, and the distance after a
    step of momentum alone, whose direction is known. In the first steps of the training, the next step also makes a gate grow as
    much as the last step did."""
    first = before_first(layer, watch)
    steps, gates = weight_steps(rows, layer, setup, first), gate_growth(layer, watch)
    if layer.form is None or layer.recorded is None:
        return (layer.overflow_distance,) * 3
    recorded = at_largest_gate(layer)
    distance = carried = layer.overflow_distance
    if computes_gates(layer.form):
        distance = carried = np.asarray(overflow_distance(layer.form, recorded))
    if steps is None:
        return distance, distance, distance
    if setup.momentum and "weight" in layer.form.inputs:
        moved = recorded | {"weight": carried_weights(layer, setup, first)}
        carried = np.asarray(overflow_distance(layer.form, moved))
    if computes_gates(layer.form):
        recorded["gate_mean"] = recorded["gate_mean"] * np.where(_first_steps(rows), gates, 1.0)
    return distance, predicted_distance(layer.form, recorded, steps, step_growth(rows, layer, setup)), carried


def _at_which_gate(layer: LayerRows) -> str:
    if layer.form is not None and layer.form.channels:
        return " at the largest step size"
    return " at the largest gate" if computes_gates(layer.form) else ""


def _may_overflow(
    rows: Rows, distance: np.ndarray, ahead: np.ndarray, carried: np.ndarray, setup: Setup, limit: float
) -> np.ndarray:
    """The eigenvalues whose budget the next step may bring to the limit, (rows, eigenvalues)."""
    # compare distances instead of budgets, because computing a budget needs one logarithm per number
    least = 1 - overflow_eigenvalue(setup.length, limit)
    reaches: np.ndarray = ahead <= least
    if ahead is distance:
        return reaches
    if setup.optimizer == "adamw":
        far: np.ndarray = ahead <= 1 - overflow_eigenvalue(setup.length, LATER * limit)
        return np.where(_first_steps(rows), reaches, far)
    relative = relative_step(rows, setup)
    return reaches if relative is None else (reaches & (relative >= NOTICEABLE)[:, None]) | (carried <= least)


def _bounded_otherwise(layer: LayerRows, distance: np.ndarray, states: States, setup: Setup, limit: float) -> np.ndarray:
    """The rows and eigenvalues whose powers are large while no recorded state is, (rows, eigenvalues).

    The layer then bounds its states itself, as rwkv4 does by averaging. An eigenvalue at the largest gate says nothing about
    that, because this gate does not last.
    """
    if computes_gates(layer.form):
        return np.zeros(distance.shape, bool)
    budget = overflow_budget(setup.length, distance)
    bounded: np.ndarray = (budget >= LARGE * limit) & (states.now[:, None] < UNUSED * np.minimum(budget, limit))
    return bounded


def _first_steps(rows: Rows) -> np.ndarray:
    """True for each row that is one of the first steps of the training, (rows, 1)."""
    first: np.ndarray = rows.first_step + np.arange(len(rows.loss)) <= FIRST_STEPS
    return first[:, None]


def _alert_of_state(rows: Rows, row: int, layer: LayerRows, states: States, limit: float) -> Alert:
    """An alert that names the largest recorded state."""
    worst = int(np.argmax(layer.state.values[row]))
    size, least = float(layer.state.values[row, worst]), np.exp(LN_LARGEST * limit)
    what = f"its state is {size:.3g}, a state budget ln|h| / {LN_LARGEST:.2f} of {states.now[row]:.3g} of {limit:g}"
    what += f" ({'float32 overflows' if limit == 1 else 'its square overflows'} at {least:.3g})"
    if states.then[row] > states.now[row]:
        what += f", and if it grows as in the last step, the next step brings it to {states.then[row]:.3g}"
    values = np.log(np.maximum(layer.state.values, np.float32(1e-38)).astype(np.float64)) / LN_LARGEST
    many = int((values[row] >= values[row, worst] - 1e-9).sum())
    return eigenvalue_alert(
        KIND,
        rows,
        row,
        layer,
        Values(values, layer.state.at),
        worst,
        chart="boundary_distance",
        count=many,
        what=what,
    )


def _overflows_at(length: int, limit: float) -> str:
    size = overflow_eigenvalue(length, limit)
    return f"float32 overflows at {size:.4g}" if size < 1e6 else "so short a sequence needs a very large eigenvalue"


KIND = AlertKind(
    name="overflow_near",
    severity="critical",
    meaning="A state is near the overflow of float32. Its state budget, ln|state| / 88.72, has reached the share "
    "`alerts.max_overflow_budget` of the limit or reaches it if it grows on, or the next step of the weights may bring the "
    "overflow budget of an eigenvalue, length x ln|eigenvalue| / 88.72, to the limit.",
    detect=detect,
    threshold=Threshold(
        name="max_overflow_budget",
        default=0.9,
        gt=0,
        le=1,
        description="Alert when a state budget reaches this share of its limit, or the next step may exceed the limit.",
    ),
    comes_before=True,
)

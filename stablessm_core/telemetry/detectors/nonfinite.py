"""Detects NaN and infinite numbers in a training step. One table lists the checks, causes before consequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from stablessm_core.map import saturated_exp
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Watch, eigenvalue_alert
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows, Values

# a check: its name, its meaning, a function that returns a bool per row (True: a number is not finite), and a function that
# makes a row's alert
Check = tuple[str, str, Callable[[Rows], np.ndarray], Callable[[AlertKind, Rows, Watch, int], Alert]]

# numbers that are recorded for each eigenvalue: the parameter's path, the values, the kind of their series, and their name in a
# message
Recorded = tuple[str, Values, str, str]
LARGEST_DT = saturated_exp(np.array([np.inf], np.float32), np)[0]
OTHER_WEIGHTS = {"dt": "step size", "phase_weight": "second weight"}

NONFINITE_BATCH = "nonfinite_batch"  # the only kind whose cause would return after a rollback
BATCH_PARTS = {1: ("batch.x", "the input, batch.x,"), 2: ("batch.y", "the target, batch.y,"), 3: ("batch.x", "input and target")}


def bad_batch(rows: Rows) -> np.ndarray:
    """True for each row whose batch holds NaN or an infinity, (rows,)."""
    return np.zeros(len(rows.loss), bool) if rows.batch is None else np.asarray(rows.batch > 0)


def _bad_state(rows: Rows) -> np.ndarray:
    bad = np.zeros(len(rows.loss), bool)
    for layer in rows.layers:
        bad |= ~np.isfinite(layer.state.values).all(axis=1)
    bad &= rows.finite_batch
    return bad


def _weight_alert(kind: AlertKind, rows: Rows, watch: Watch, row: int) -> Alert:
    return _tensor_alert(kind, rows, watch, row, rows.weight_norms, _weights, "")


def _gradient_alert(kind: AlertKind, rows: Rows, watch: Watch, row: int) -> Alert:
    return _tensor_alert(kind, rows, watch, row, rows.gradient_norms, _gradients, ".grad")


def _weights(layer: LayerRows) -> Iterator[Recorded]:
    yield layer.path, layer.weight, "weight", "weight"
    for chart, values in (layer.recorded or {}).items():
        if chart in layer.paths:
            yield layer.paths[chart], Values(values), chart, OTHER_WEIGHTS[chart]

    if (path := layer.paths.get("dt")) is not None and layer.recorded is not None and "dt" in layer.recorded:
        yield path, _infinite_log_dt(layer.recorded["dt"]), "dt", "logarithm of the step size"


def _infinite_log_dt(dt: np.ndarray) -> Values:
    """The infinite logarithms of the step sizes, which are recorded as the step size 0 or the largest one; 0 for all others.

    Read only if the parameter holds an infinity, because a very large finite logarithm has the same step size.
    """
    return Values(np.where(dt == 0, -np.inf, np.where(dt >= LARGEST_DT, np.inf, 0.0)))


def _gradients(layer: LayerRows) -> Iterator[Recorded]:
    found = layer.gradients
    if "weight" in found:
        yield layer.path, Values(found["weight"]), "gradient", "gradient"
    ratios = [(layer.path, layer.ratio, layer.weight.values, "grad_over_weight", "gradient over weight")]
    if "phase_weight" in found and layer.recorded is not None and "phase_weight" in layer.paths:
        path, weight = layer.paths["phase_weight"], layer.recorded["phase_weight"]
        ratios.append((path, Values(found["phase_weight"]), weight, "grad_over_phase", "gradient over second weight"))
    for path, ratio, weight, chart, what in ratios:
        yield path, _without_zero_weights(ratio, weight), chart, what
    if "dt" in found and "dt" in layer.paths:
        yield layer.paths["dt"], Values(found["dt"]), "dt", "gradient of the logarithm of the step size"
    for path, ratio, _, chart, what in ratios:
        yield path, ratio, chart, what


def _without_zero_weights(ratio: Values, weight: np.ndarray) -> Values:
    """The ratios with 0 for each infinite ratio whose weight is 0, because its gradient may be finite."""
    if ratio.at is not None or ratio.values.shape != weight.shape or (weight != 0).all():
        return ratio
    return Values(np.where(np.isinf(ratio.values) & (weight == 0), 0.0, ratio.values))


def _batch_alert(kind: AlertKind, rows: Rows, watch: Watch, row: int) -> Alert:  # noqa: ARG001
    assert rows.batch is not None
    step, flag = rows.step(row), int(rows.batch[row])
    tensor, what = BATCH_PARTS[flag]
    message = f"{what} of step {step} contains NaN or an infinity before the model computes anything"
    return kind.alert(step=step, message=message, series=names.BATCH_NONFINITE, tensor=tensor, value=float(flag))


def _state_alert(kind: AlertKind, rows: Rows, watch: Watch, row: int) -> Alert:  # noqa: ARG001
    for layer in rows.layers:
        tensor = layer.path.rpartition(".")[0] + ".state"
        if found := _eigenvalue_alert(kind, rows, row, layer, layer.state, "eigenvalue", "state", tensor):
            return found
    raise AssertionError(f"no state is non-finite in row {row}")


def _loss_alert(kind: AlertKind, rows: Rows, watch: Watch, row: int) -> Alert:  # noqa: ARG001
    step, value = rows.step(row), float(rows.loss[row])
    return kind.alert(step=step, message=f"loss is {value}", series=names.TRAIN_LOSS, tensor="loss", value=value)


def _tensor_alert(
    kind: AlertKind,
    rows: Rows,
    watch: Watch,
    row: int,
    norms: np.ndarray,
    recorded: Callable[[LayerRows], Iterator[Recorded]],
    suffix: str,
) -> Alert:
    """The alert of a row. It names an eigenvalue if one of its numbers is non-finite, otherwise a non-finite tensor."""
    bad = np.flatnonzero(~np.isfinite(norms[row]))
    tensors = [watch.parameters[i] for i in bad]
    more = f"; {len(tensors) - 1} other tensors too" if len(tensors) > 1 else ""
    for layer in rows.layers:
        for path, values, chart, what in recorded(layer):
            if path in tensors and (found := _eigenvalue_alert(kind, rows, row, layer, values, chart, what, path + suffix, more)):
                return found
    tensor, norm = tensors[0] + suffix, float(norms[row, bad[0]])
    message = f"norm of {tensor} is {norm}{more}"
    return kind.alert(step=rows.step(row), message=message, series=names.GRAD_NORM, tensor=tensor, value=norm)


def _eigenvalue_alert(
    kind: AlertKind, rows: Rows, row: int, layer: LayerRows, values: Values, chart: str, what: str, tensor: str, more: str = ""
) -> Alert | None:
    """The alert for a non-finite number of the layer in this row; None if all these numbers are finite.

    If several numbers are non-finite, the alert names the eigenvalue that is nearest to the boundary or furthest beyond it.
    """
    bad = np.flatnonzero(~np.isfinite(values.values[row]))
    if not len(bad):
        return None
    column, distances = int(bad[0]), layer.distance
    if distances.at is None and len(bad) > 1 and distances.values.shape[1] > bad.max():
        distance = distances.values[row, bad]
        column = int(bad[np.argmin(np.where(np.isnan(distance), np.inf, distance))])
    return eigenvalue_alert(
        kind,
        rows,
        row,
        layer,
        values,
        column,
        chart=chart,
        count=len(bad),
        what=f"{what} is {float(values.values[row, column])}",
        tensor=tensor,
        more=more,
    )


def _bad(norms: np.ndarray) -> np.ndarray:
    return np.asarray(~np.isfinite(norms).all(axis=1))


# A row with a non-finite batch raises only the batch alert, and the weight alert if the weights were already non-finite.
CHECKS: tuple[Check, ...] = (
    ("nonfinite_weight", "A trainable tensor holds NaN or an infinity.", lambda rows: _bad(rows.weight_norms), _weight_alert),
    (
        NONFINITE_BATCH,
        "The input or the target of a training step holds NaN or an infinity. Non-finite numbers that the step computes from "
        "them raise no alert.",
        bad_batch,
        _batch_alert,
    ),
    (
        "nonfinite_state",
        "The recurrent state of an eigenvalue is NaN or infinite at the end of a sequence.",
        _bad_state,
        _state_alert,
    ),
    (
        "nonfinite_loss",
        "The training loss is NaN or infinite.",
        lambda rows: ~np.isfinite(rows.loss) & rows.finite_batch & ~rows.was_skipped,
        _loss_alert,
    ),
    (
        "nonfinite_gradient",
        "A gradient holds NaN or an infinity.",
        lambda rows: _bad(rows.gradient_norms) & rows.finite_batch,
        _gradient_alert,
    ),
)


def _kind(name: str, meaning: str, bad: Callable[[Rows], np.ndarray], alert: Callable[..., Alert]) -> AlertKind:
    def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
        yield Condition(None, bad(rows), lambda row: alert(kind, rows, watch, row))

    kind = AlertKind(name=name, severity="critical", meaning=meaning, detect=detect, nonfinite=True)
    return kind


KINDS = tuple(_kind(*check) for check in CHECKS)

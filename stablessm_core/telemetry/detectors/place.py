"""Alerts that name an eigenvalue of a layer, or a tensor: how they find it and say it."""

from __future__ import annotations

import numpy as np

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows, Values


def at_eigenvalue(
    kind: AlertKind,
    rows: Rows,
    row: int,
    layer: LayerRows,
    values: Values,
    column: int,
    *,
    chart: str,
    count: int,
    what: str,
    tensor: str = "",
    more: str = "",
) -> Alert:
    """The alert of one eigenvalue out of `count` with the same condition; `chart` is the layer's series that shows it."""
    value, eigenvalue = float(values.values[row, column]), values.eigenvalue(row, column)
    others = (
        f", and {'at least ' if values.at is not None else ''}{count - 1} other{'s' if count > 2 else ''}" if count > 1 else ""
    )
    return kind.alert(
        step=rows.first_step + row,
        message=f"layer {layer.layer}, eigenvalue {eigenvalue}: {what} {value:.6g}{others}{more}",
        series=names.layer_series(layer.id, chart),
        layer=layer.layer,
        eigenvalue=eigenvalue,
        tensor=tensor or layer.path,
        value=value,
    )


def at_nonfinite_value(
    kind: AlertKind,
    rows: Rows,
    row: int,
    layer: LayerRows,
    values: Values,
    *,
    chart: str,
    what: str,
    tensor: str,
    more: str = "",
) -> Alert | None:
    """The alert of the layer's non-finite number in this row; None when all of them are finite."""
    bad = np.flatnonzero(~np.isfinite(values.values[row]))
    if not len(bad):
        return None
    column = _nearest_to_boundary(layer, row, bad)
    return at_eigenvalue(kind, rows, row, layer, values, column, chart=chart, count=len(bad), what=what, tensor=tensor, more=more)


def at_tensor(kind: AlertKind, rows: Rows, row: int, tensor: str, norm: float, more: str = "") -> Alert:
    """The alert of a whole tensor, known by its norm."""
    message = f"norm of {tensor} is {norm}{more}"
    return kind.alert(step=rows.first_step + row, message=message, series=names.GRAD_NORM, tensor=tensor, value=norm)


def _nearest_to_boundary(layer: LayerRows, row: int, columns: np.ndarray) -> int:
    # of several bad columns the one whose eigenvalue is nearest to the boundary, or furthest beyond it
    if layer.distance.at is not None or len(columns) == 1 or layer.distance.values.shape[1] <= columns.max():
        return int(columns[0])
    distance = layer.distance.values[row, columns]
    return int(columns[np.argmin(np.where(np.isnan(distance), np.inf, distance))])

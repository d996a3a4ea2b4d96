"""A gradient holds a value that is not finite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Watch
from stablessm_core.telemetry.detectors.place import at_nonfinite_value, at_tensor
from stablessm_core.telemetry.detectors.rows import Rows


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    norms = rows.gradient_norms

    def alert(row: int) -> Alert:
        bad = np.flatnonzero(~np.isfinite(norms[row]))
        tensors = [watch.parameters[i] for i in bad]
        more = f"; {len(tensors) - 1} other tensors too" if len(tensors) > 1 else ""
        for layer in rows.layers:  # a weight of eigenvalues first: there the alert can name the eigenvalue, too
            if layer.path in tensors:
                found = at_nonfinite_value(
                    KIND,
                    rows,
                    row,
                    layer,
                    layer.ratio,
                    chart="grad_over_weight",
                    what="gradient over weight",
                    tensor=layer.path + ".grad",
                    more=more,
                )
                if found is not None:
                    return found
        return at_tensor(KIND, rows, row, tensors[0] + ".grad", float(norms[row, bad[0]]), more)

    yield Condition(None, ~np.isfinite(norms).all(axis=1) & rows.finite_batch, alert)


KIND = AlertKind(
    name="nonfinite_gradient",
    severity="critical",
    meaning="A gradient holds NaN or an infinity.",
    detect=detect,
    nonfinite=True,
)

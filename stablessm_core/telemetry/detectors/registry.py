"""Every kind of alert, by name.

The order matters: the first alert of a training step must report the likeliest cause, so non-finite numbers come before their
consequences.
"""

from __future__ import annotations

from stablessm_core.telemetry.detectors import (
    batch_skipped,
    boundary_distance,
    dead_eigenvalues,
    grad_over_weight,
    nonfinite,
    overflow_near,
    raised_elsewhere,
    steps_skipped,
    training_explodes,
    unstable_eigenvalue,
)

KINDS = {
    kind.name: kind
    for kind in (
        *nonfinite.KINDS,
        batch_skipped.KIND,
        steps_skipped.KIND,
        overflow_near.KIND,
        training_explodes.KIND,
        grad_over_weight.KIND,
        unstable_eigenvalue.KIND,
        boundary_distance.KIND,
        dead_eigenvalues.KIND,
        *raised_elsewhere.KINDS,
    )
}

THRESHOLDS = tuple(kind.threshold for kind in KINDS.values() if kind.threshold is not None)

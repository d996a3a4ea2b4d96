"""Every kind of alert: one line here registers the one that a file of this package defines.

A numbers-are-lost alert comes before its consequences: of one training step the first alert is the likeliest cause.
"""

from __future__ import annotations

from stablessm_core.telemetry.detectors import (
    boundary_distance,
    dead_eigenvalues,
    grad_over_weight,
    no_progress,
    nonfinite_batch,
    nonfinite_gradient,
    nonfinite_loss,
    nonfinite_state,
    nonfinite_weight,
    overflow_near,
    raised_elsewhere,
    training_explodes,
    unstable_eigenvalue,
)

KINDS = {
    kind.name: kind
    for kind in (
        nonfinite_weight.KIND,
        nonfinite_batch.KIND,
        nonfinite_state.KIND,
        nonfinite_loss.KIND,
        nonfinite_gradient.KIND,
        overflow_near.KIND,
        training_explodes.KIND,
        grad_over_weight.KIND,
        unstable_eigenvalue.KIND,
        boundary_distance.KIND,
        dead_eigenvalues.KIND,
        no_progress.KIND,
        raised_elsewhere.ROLLED_BACK,
        raised_elsewhere.LR_LOWERED,
        raised_elsewhere.STOPPED_EARLY,
        raised_elsewhere.WORKER_LOST,
        raised_elsewhere.TRAINER_CRASHED,
        raised_elsewhere.SPOOL_FULL,
    )
}

# pydantic takes the fields of the last base first, so that the fields come in the order of KINDS
SETTINGS = tuple(kind.settings for kind in reversed(KINDS.values()) if kind.settings is not None)

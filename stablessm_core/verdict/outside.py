"""The eigenvalues outside the stability boundary at one step of a run."""

from __future__ import annotations

import math
from typing import Any

from stablessm_core.telemetry.stability import overflow_length
from stablessm_core.verdict import eigenvalues
from stablessm_core.verdict.inputs import Run, Source


def unstable(run: Run, source: Source, step: int) -> dict[str, Any] | None:
    """The eigenvalues outside the stability boundary at this step: their number, the worst distance, and the sequence length at
    which their powers overflow.

    None if every eigenvalue is inside the boundary, or if no distance is recorded at this step.
    """
    worst = eigenvalues.worst_eigenvalue(run, source, step)
    if worst is None or not worst.outside:
        return None
    longest = overflow_length(worst.distance, run.limit_of(worst.layer))
    return {
        "eigenvalues": worst.outside,
        "of": run.eigenvalues,
        "worst_distance": worst.distance,
        "overflow_budget": None if worst.budget is None else worst.budget + 0.0,  # without the sign of -0.0
        "overflows_at_length": math.ceil(longest) if math.isfinite(longest) else None,
    }

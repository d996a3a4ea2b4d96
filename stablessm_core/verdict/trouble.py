"""What a trouble is, and how a recorded row tells the step of its beginning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stablessm_core.verdict.inputs import Run

KINDS = ("crossing", "loss", "gradient", "batch", "rate", "decay", "fatal")


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """The beginning of a run's trouble. kind: one of KINDS.

    step: the state after the steps 1 to `step` - 1 is certainly free of the trouble. shown: the first recorded step that shows
    the trouble. exact: False if steps between `step` and `shown` were not recorded, so the trouble may have begun at any of them.
    """

    step: int
    kind: str
    shown: int
    exact: bool = True


def update_before(run: Run, kind: str, steps: np.ndarray, row: int) -> Trouble:
    """The trouble that this row shows first: it began with the update of the row before."""
    shown = int(steps[row])
    step = int(steps[row - 1]) if row > 0 else max(run.first_step, shown - run.recorded_every)
    return Trouble(step=step, kind=kind, shown=shown, exact=shown - step <= 1)

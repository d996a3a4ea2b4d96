"""The weights of the eigenvalues stay as they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from stablessm_core.autopsy.change import Change, NotPossible, usual_place

if TYPE_CHECKING:
    from stablessm_core.autopsy.start import Start, Trial


def make(start: Start) -> Trial:
    bench = start.bench
    if bench.config.optimizer.recurrent_lr == 0:
        raise NotPossible("the run's recurrence is frozen already")
    if not bench.change_rates(math.inf, group="recurrent"):
        raise NotPossible("the model has no trained eigenvalues")
    bench.restore(start.state)
    return bench, {"optimizer.recurrent_lr": 0.0}


CHANGE = Change(
    name="recurrence_frozen",
    label="recurrence frozen",
    how="with the recurrence frozen",
    line="line-0",
    make=make,
    place=usual_place(20.0, crossing=5.0),  # after a crossing, it tells whether the eigenvalue did it
    harmless=True,
)

"""An input or target that is larger than usual is divided so that its size is usual."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stablessm_core.autopsy.change import Change, NotPossible, usual_place

if TYPE_CHECKING:
    from stablessm_core.autopsy.start import Start, Trial

LOOKED_AT = 64  # number of steps since the trouble that are searched for a batch larger than usual


def make(start: Start) -> Trial:
    from stablessm_core.autopsy.batches import ScaledBatches, usual_sizes

    bench, step = start.bench, start.state.step
    if not any(t.is_floating_point() for t in bench.batches(step + 1)):
        raise NotPossible("the batches hold tokens and classes, which have no size")
    batches = ScaledBatches(bench.batches, usual_sizes(bench, step))
    last = min(step + LOOKED_AT, bench.config.train.steps)
    if not any(batches.scales(one) for one in range(step + 1, last + 1)):
        raise NotPossible("no batch since then is larger than usual")
    trial = replace(bench, batches=batches)
    trial.restore(start.state)
    return trial, {}


CHANGE = Change(
    name="batches_scaled",
    label="every batch scaled to its usual size",
    how="with every batch scaled to its usual size",
    line="line-5",
    make=make,
    place=usual_place(40.0, batch=6.0),  # after leaving out the one batch: later batches may be as large
    harmless=True,
)
